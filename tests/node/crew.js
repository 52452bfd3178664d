'use strict';
/*
 * Real BullMQ workers that keep a diary, one per queue, for the tests of the data pipeline and of mixed fleets:
 *
 *   node crew.js '{"folder": …, "url": …, "queues": […], "name": …, "diary": …, "concurrency": …}'
 *
 * What an attempt does is said by the job's data: `steps[n]` is what its (n+1)th start does, after `take`
 * ms of work. With `fenced` the result names the attempt. Begin and end of every attempt go to the diary, one line
 * each, written before anything else can happen.
 */
const fs = require('fs');
const path = require('path');

const told = JSON.parse(process.argv[2]);
const bullmq = require(path.join(told.folder, 'node_modules', 'bullmq'));
const { Worker, UnrecoverableError, DelayedError } = bullmq;
const address = new URL(told.url);
const diary = fs.openSync(told.diary, 'a');

function note(what, job, step) {
  const line = {
    what,
    job: job.id,
    queue: job.queueName,
    row: job.data.row,
    start: job.attemptsStarted,
    step,
    at: performance.timeOrigin + performance.now(),
    side: told.side,
    worker: told.name,
    pid: process.pid,
  };
  fs.writeSync(diary, JSON.stringify(line) + '\n');
}

async function run(job, token) {
  const steps = job.data.steps;
  const step = steps[Math.min(job.attemptsStarted, steps.length) - 1];
  note('began', job, step);
  if (step === 'die') {
    process.kill(process.pid, 'SIGKILL');
  }
  if (step === 'freeze') {
    process.kill(process.pid, 'SIGSTOP');
  }
  await new Promise(done => setTimeout(done, job.data.take));
  note('ended', job, step);
  if (step === 'bad') {
    throw new UnrecoverableError(`row ${job.data.row} is bad`);
  }
  if (step === 'fail') {
    throw new Error(`row ${job.data.row} not yet`);
  }
  if (step === 'snooze') {
    await job.moveToDelayed(Date.now() + 20, token);
    throw new DelayedError();
  }
  return told.fenced ? { row: job.data.row, start: job.attemptsStarted, pid: process.pid } : job.data.row;
}

for (const queue of told.queues) {
  const worker = new Worker(queue, run, {
    connection: { host: address.hostname, port: Number(address.port) },
    concurrency: told.concurrency,
    name: told.name,
    lockDuration: told.lock,
    stalledInterval: told.check,
    maxStalledCount: told.stalls,
    drainDelay: 1,
  });
  worker.on('error', error => console.error(String(error)));
  worker.on('ready', () => console.error('ready'));
}
process.stdin.resume();
// Never outlives the test.
process.stdin.on('end', () => process.exit(0));
