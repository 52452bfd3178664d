// bull-board beside queues, for the tests: node board.js <url> <queue>…
// Prints the address it is served at, and ends when its standard input does.
'use strict';

const { createBullBoard } = require('@bull-board/api');
const { BullMQAdapter } = require('@bull-board/api/bullMQAdapter');
const { ExpressAdapter } = require('@bull-board/express');
const { Queue } = require('bullmq');
const express = require('express');

const [url, ...names] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
// Without skipMetasUpdate every Queue of BullMQ would shorten the queue's stream of events to 10 000 again.
const options = { connection: { host, port: Number(port) }, skipMetasUpdate: true };

const served = new ExpressAdapter();
createBullBoard({
  queues: names.map((name) => new BullMQAdapter(new Queue(name, options))),
  serverAdapter: served,
});
const app = express();
app.use(served.getRouter());
const listening = app.listen(0, '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${listening.address().port}/`);
});
process.stdin.on('end', () => process.exit(0)).resume();
