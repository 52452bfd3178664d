'use strict';
/*
 * The measured process of Node's bullmq, of whichever version the folder holds.
 *
 *   node bullmq_node.js <folder that holds node_modules/bullmq> '<task as JSON>'
 *
 * The same roles, words and reports as `role.py`.
 */

const path = require('path');
const readline = require('readline');

const folder = path.resolve(process.argv[2]);
const task = JSON.parse(process.argv[3]);
const { Queue, Worker } = require(require.resolve('bullmq', { paths: [folder] }));
const { version } = require(path.join(folder, 'node_modules', 'bullmq', 'package.json'));

const TELL = 100;

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// The wall clock, finer than Date.now().
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const nowNs = () => String(BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const noOp = async () => {};

function report(facts) {
  process.stdout.write(JSON.stringify(facts) + '\n');
}

async function waitFor(word) {
  const { value } = await lines.next();
  if (value !== word) process.exit(1);
}

async function ready() {
  report({ ready: true, version });
  await waitFor('go');
}

function payload(stamp) {
  if (stamp === undefined) return { v: 'x'.repeat(100 - '{"v":""}'.length) };
  return { t: stamp, v: 'x'.repeat(Math.max(0, 100 - '{"t":"","v":""}'.length - stamp.length)) };
}

function latencies(values) {
  const ordered = Float64Array.from(values).sort();
  const at = (share) => ordered[Math.max(0, Math.ceil(share * ordered.length) - 1)] * 1000;
  const mean = (values.reduce((sum, value) => sum + value, 0) / values.length) * 1000;
  return { p50_ms: at(0.5), p99_ms: at(0.99), mean_ms: mean };
}

const connection = (port) => ({ host: '127.0.0.1', port });
const rows = (count) => Array.from({ length: count }, () => ({ name: 'job', data: payload() }));

function makeWorker(name, port) {
  const worker = new Worker(name, noOp, {
    connection: connection(port),
    concurrency: task.concurrency,
  });
  worker.on('error', (error) => console.error(error));
  return worker;
}

async function warmQueue(count) {
  const queue = new Queue('warm', { connection: connection(task.warm_port) });
  await queue.addBulk(rows(count));
  for (let i = 0; i < count; i++) await queue.add('warm', payload());
  await queue.close();
}

async function warmWorker() {
  const count = Math.floor(task.warm / 2);
  await warmQueue(count);
  let left = count * 2;
  const worker = makeWorker('warm', task.warm_port);
  await new Promise((resolve) => {
    worker.on('completed', () => {
      if (--left === 0) resolve();
    });
  });
  await worker.close();
}

class Count {
  constructor(expected) {
    this.expected = expected;
    this.count = 0;
    this.reported = 0;
    this.spent = [];
    this.began = this.last = now();
    this.timer = setInterval(() => {
      if (this.count !== this.reported && !this.spent.length) this.report();
    }, TELL);
  }

  one() {
    this.count++;
    this.last = now();
    if (this.count === this.expected) {
      clearInterval(this.timer);
      this.report();
    }
  }

  oneSince(stamp) {
    this.spent.push(Math.max(0, now() - Number(stamp) / 1e9));
    this.one();
  }

  report() {
    this.reported = this.count;
    const more = this.spent.length ? latencies(this.spent) : {};
    report({ count: this.count, began: this.began, last: this.last, ...more });
  }
}

const roles = {
  async fill(queue) {
    await ready();
    await timeBulk(queue, rows(task.jobs));
  },
  async add_many(queue) {
    await warmQueue(task.warm);
    const bulk = rows(task.jobs);
    await queue.getJobCounts();
    await ready();
    await timeBulk(queue, bulk);
  },
  async add(queue) {
    await warmQueue(task.warm);
    const data = payload();
    await queue.getJobCounts();
    await ready();
    const spent = [];
    const began = now();
    for (let i = 0; i < task.jobs; i++) {
      const before = performance.now();
      await queue.add('job', data);
      spent.push((performance.now() - before) / 1000);
    }
    report({ count: task.jobs, began, last: now(), ...latencies(spent) });
  },
  async pace(queue) {
    await warmQueue(task.warm);
    await queue.getJobCounts();
    await ready();
    for (let i = 0; i < task.jobs; i++) {
      await queue.add('job', payload(nowNs()));
      await sleep(task.pause * 1000);
    }
    report({ count: task.jobs });
  },
  async work() {
    await warmWorker();
    await ready();
    const count = new Count(task.jobs);
    makeWorker(task.queue, task.port).on('completed', () => count.one());
  },
  async wait() {
    await warmWorker();
    const count = new Count(task.jobs);
    makeWorker(task.queue, task.port).on('completed', (job) => count.oneSince(job.data.t));
    await sleep(1000);
    await ready();
  },
};

async function timeBulk(queue, bulk) {
  const began = now();
  await queue.addBulk(bulk);
  report({ count: bulk.length, began, last: now() });
}

async function main() {
  const producer = !['work', 'wait'].includes(task.role);
  const queue = producer ? new Queue(task.queue, { connection: connection(task.port) }) : null;
  await roles[task.role](queue);
  await waitFor('end');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
