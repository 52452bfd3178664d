'use strict';
/*
 * One long-lived Node process that drives the real BullMQ for the tests.
 *
 *   node driver.js <folder that holds node_modules/bullmq> [traced]
 *
 * It reads one JSON command per line from stdin and answers with one JSON line:
 *   {"id": 1, "op": "add", "args": {...}}  ->  {"id": 1, "result": ...}
 *                                          or  {"id": 1, "error": {"message", "name", "code"}}
 * Commands run at the same time unless they come in one `batch`, whose commands run in turn.
 *
 * Two ways of use:
 *  - by hand, for comparing states: a command's `now` sets the clock that BullMQ sees, ids and lock
 *    tokens are given, jobs are fetched with `claim`, and nothing happens between two commands;
 *  - for real, for living together on a queue: workers that run by themselves (`workerStart`),
 *    collected events (`eventsStart`), and commands that answer when something has happened.
 */

const path = require('path');
const readline = require('readline');

const folder = path.resolve(process.argv[2] || '.');
const bullmq = require(require.resolve('bullmq', { paths: [folder] }));
const version = require(
  path.join(folder, 'node_modules', 'bullmq', 'package.json'),
).version;
const ioredis = require(require.resolve('ioredis', { paths: [folder] }));
const Redis = ioredis.default || ioredis;
const { Queue, Worker, QueueEvents, FlowProducer, Job } = bullmq;
const telemetry = process.argv[3] === 'traced' ? require('./telemetry.js')(folder) : null;
const traced = telemetry ? { telemetry: telemetry.bullmq } : {};

// stdout belongs to the answers.
console.log = console.error;

// ---------------------------------------------------------------------------------- the clock

const RealDate = Date;
const realNow = Date.now.bind(Date);
let fixedNow = null;

class DrivenDate extends RealDate {
  constructor(...args) {
    if (args.length === 0 && fixedNow !== null) {
      super(fixedNow);
    } else {
      super(...args);
    }
  }
  static now() {
    return fixedNow === null ? realNow() : fixedNow;
  }
}

function setClock(now) {
  if (now === undefined) {
    return;
  }
  fixedNow = now;
  globalThis.Date = now === null ? RealDate : DrivenDate;
}

// ---------------------------------------------------------------------------------- what is open

let connection = null; // options, not an instance: every object gets its own connection
let prefix = 'bull';
const queues = new Map(); // name -> Queue
const workers = new Map(); // queue + options -> Worker driven by hand
const claims = new Map(); // queue, id, token -> the Job object that fetch returned
const running = new Map(); // handle -> a real worker with its records
const listeners = new Map(); // handle -> QueueEvents with what it saw
let flows = null;
let raw = null; // a plain connection for commands of our own

function parseUrl(url) {
  const parsed = new URL(url);
  const db = Number(parsed.searchParams.get('db') || 0);
  if (parsed.protocol === 'unix:') {
    return { path: decodeURIComponent(parsed.pathname), db };
  }
  return {
    host: parsed.hostname.replace(/^\[|\]$/g, ''),
    port: Number(parsed.port || 6379),
    db: Number(parsed.pathname.slice(1) || db),
    ...(parsed.username ? { username: parsed.username } : {}),
    ...(parsed.password ? { password: parsed.password } : {}),
  };
}

function quiet(emitter) {
  emitter.on('error', error => console.error(String(error && error.stack)));
  return emitter;
}

async function queueOf(name, options = {}) {
  if (!queues.has(name)) {
    const queue = quiet(
      new Queue(name, { connection, prefix, skipMetasUpdate: true, ...traced, ...options }),
    );
    queues.set(name, queue);
  }
  const queue = queues.get(name);
  await queue.waitUntilReady();
  return queue;
}

async function workerOf(name, options = {}) {
  const key = JSON.stringify([name, options]);
  if (!workers.has(key)) {
    const worker = quiet(
      new Worker(name, null, { connection, prefix, autorun: false, ...options }),
    );
    workers.set(key, worker);
  }
  const worker = workers.get(key);
  await worker.waitUntilReady();
  return worker;
}

function producer() {
  if (!flows) {
    flows = quiet(new FlowProducer({ connection, prefix, ...traced }));
  }
  return flows;
}

// The scripts have another name since 6.0.
function scriptsOf(owner) {
  return owner.backend || owner.scripts;
}

// A job as an operator sees it: read now. One that does not exist is still asked for by its id,
// so that the script itself says what is wrong.
async function jobOf(queue, id) {
  return (await Job.fromId(queue, id)) || new Job(queue, 'missing', {}, {}, id);
}

// A job as the worker that fetched it holds it; for a token that never fetched it, as it is now.
async function claimedJob(args) {
  const worker = await workerOf(args.queue, args.worker);
  const held = claims.get(`${args.queue} ${args.jobId} ${args.token}`);
  return [worker, held || (await jobOf(worker, args.jobId))];
}

function remember(queue, job, token) {
  if (job) {
    claims.set(`${queue} ${job.id} ${token}`, job);
  }
}

function makeError(spec) {
  const name = spec.name || 'Error';
  const error =
    name === 'UnrecoverableError'
      ? new bullmq.UnrecoverableError(spec.message)
      : new Error(spec.message);
  error.name = name;
  if ('stack' in spec) {
    error.stack = spec.stack;
  }
  return error;
}

function describe(job) {
  return job
    ? {
        id: job.id,
        name: job.name,
        data: job.data,
        opts: job.opts,
        timestamp: job.timestamp,
        delay: job.delay,
        priority: job.priority,
        progress: job.progress,
        returnvalue: job.returnvalue,
        failedReason: job.failedReason,
        stacktrace: job.stacktrace,
        attemptsMade: job.attemptsMade,
        attemptsStarted: job.attemptsStarted,
        stalledCounter: job.stalledCounter,
        deferredFailure: job.deferredFailure,
        processedOn: job.processedOn,
        finishedOn: job.finishedOn,
        processedBy: job.processedBy,
        parentKey: job.parentKey,
      }
    : null;
}

// What a fetch told: the job, or why there is none.
function fetched(worker, job) {
  return {
    job: describe(job),
    limited: Math.max(0, (worker.limitUntil || 0) - Date.now()),
    delayUntil: worker.blockUntil || 0,
  };
}

async function afterFinish(args, worker, result) {
  if (!args.fetchNext) {
    return null;
  }
  const [data, id, limited, delayUntil] = result || [];
  worker.updateDelays(limited, delayUntil);
  const job = await worker.nextJobFromJobData(data, id, args.token);
  remember(args.queue, job, args.token);
  return fetched(worker, job);
}

// ---------------------------------------------------------------------------------- by hand

const ops = {
  async connect({ url, prefix: given }) {
    connection = parseUrl(url);
    prefix = given || 'bull';
    raw = quiet(new Redis(connection));
    await raw.ping();
    return { version, pid: process.pid };
  },

  // An empty database, as if the given queues had just been opened.
  async reset({ queues: names = [], metas = true }) {
    await raw.flushdb();
    claims.clear();
    for (const worker of workers.values()) {
      worker.drained = false;
      worker.updateDelays();
    }
    for (const name of names) {
      const queue = await queueOf(name);
      if (metas) {
        await raw.hset(queue.keys.meta, queue.metaValues);
      }
    }
  },

  async clock({ now = null }) {
    setClock(now);
  },

  async openQueue({ queue, options }) {
    // A second opening is a second Queue object, as in a second process.
    const opened = quiet(new Queue(queue, { connection, prefix, ...options }));
    await opened.waitUntilReady();
    if (!queues.has(queue)) {
      queues.set(queue, opened);
    } else {
      await opened.close();
    }
  },

  async command({ command, args = [] }) {
    return raw.call(command, ...args);
  },

  async add({ queue, name, data, opts }) {
    return (await (await queueOf(queue)).add(name, data, opts)).id;
  },

  async addBulk({ queue, jobs }) {
    return (await (await queueOf(queue)).addBulk(jobs)).map(job => job.id);
  },

  async addFlow({ flow }) {
    const ids = node => ({
      id: node.job.id,
      children: (node.children || []).map(ids),
    });
    return ids(await producer().add(flow));
  },

  // Trees as children of a job of the queue.
  async addChildren({ queue, jobId, flows: nodes }) {
    const parent = { id: jobId, queue: `${prefix}:${queue}` };
    const added = [];
    for (const node of nodes) {
      added.push(await ops.addFlow({ flow: { ...node, opts: { ...node.opts, parent } } }));
    }
    return added;
  },

  // The children of a job by what became of them, and how many.
  async getDependencies({ queue, jobId }) {
    const job = await jobOf(await queueOf(queue), jobId);
    const { processed, unprocessed, ignored, failed } = await job.getDependencies();
    return {
      processed,
      unprocessed: unprocessed.sort(),
      ignored,
      failed,
      counts: await job.getDependenciesCount(),
    };
  },

  async getFlow({ queue, jobId, depth, maxChildren }) {
    const flows = producer();
    const shape = node =>
      node && {
        id: node.job.id,
        queue: node.job.queueName,
        children: (node.children || []).map(shape).filter(Boolean),
      };
    const opts = { queueName: queue, id: jobId, prefix };
    return shape(await flows.getFlow({ ...opts, ...(depth ? { depth } : {}), ...(maxChildren ? { maxChildren } : {}) }));
  },

  async getDeduplicationJobId({ queue, key }) {
    return (await queueOf(queue)).getDeduplicationJobId(key);
  },

  async claim(args) {
    const worker = await workerOf(args.queue, args.worker);
    // What the worker remembers of earlier fetches would keep it from asking the server.
    worker.updateDelays();
    const job = await worker.getNextJob(args.token, { block: false });
    remember(args.queue, job, args.token);
    return fetched(worker, job);
  },

  async complete(args) {
    const [worker, job] = await claimedJob(args);
    const result = await job.moveToCompleted(
      args.value,
      args.token,
      !!args.fetchNext,
    );
    return afterFinish(args, worker, result);
  },

  // The whole policy of a failure: retried now, later, or failed for good.
  async fail(args) {
    const [worker, job] = await claimedJob(args);
    const result = await job.moveToFailed(
      makeError(args.error),
      args.token,
      !!args.fetchNext,
    );
    return result ? afterFinish(args, worker, result) : null;
  },

  async moveToDelayed(args) {
    const [, job] = await claimedJob(args);
    await job.moveToDelayed(args.until, args.token);
  },

  async giveBack(args) {
    const [, job] = await claimedJob(args);
    return job.moveToWait(args.token);
  },

  // What a worker does when its processor rate limits the queue.
  async giveBackHeld(args) {
    const [worker, job] = await claimedJob(args);
    await worker.rateLimit(args.hold);
    return job.moveToWait(args.token);
  },

  async moveToWaitingChildren(args) {
    const [, job] = await claimedJob(args);
    return job.moveToWaitingChildren(args.token, args.opts || {});
  },

  async extendLock(args) {
    const [, job] = await claimedJob(args);
    return job.extendLock(args.token, args.duration);
  },

  async extendLocks(args) {
    const worker = await workerOf(args.queue, args.worker);
    return scriptsOf(worker).extendLocks(args.jobIds, args.tokens, args.duration);
  },

  async recover(args) {
    const worker = await workerOf(args.queue, args.worker);
    return scriptsOf(worker).moveStalledJobsToWait();
  },

  async pause({ queue }) {
    await (await queueOf(queue)).pause();
  },

  async resume({ queue }) {
    await (await queueOf(queue)).resume();
  },

  async isPaused({ queue }) {
    return (await queueOf(queue)).isPaused();
  },

  async updateProgress({ queue, jobId, progress }) {
    await (await queueOf(queue)).updateJobProgress(jobId, progress);
  },

  async log({ queue, jobId, row, keep }) {
    return (await queueOf(queue)).addJobLog(jobId, row, keep);
  },

  async clearLogs({ queue, jobId, keep }) {
    await (await jobOf(await queueOf(queue), jobId)).clearLogs(keep);
  },

  async getLogs({ queue, jobId, start, end, asc }) {
    return (await queueOf(queue)).getJobLogs(jobId, start, end, asc);
  },

  async updateData({ queue, jobId, data }) {
    await (await jobOf(await queueOf(queue), jobId)).updateData(data);
  },

  async changePriority({ queue, jobId, priority, lifo }) {
    const job = await jobOf(await queueOf(queue), jobId);
    await job.changePriority({ priority, lifo });
  },

  async changeDelay({ queue, jobId, delay }) {
    await (await jobOf(await queueOf(queue), jobId)).changeDelay(delay);
  },

  async promote({ queue, jobId }) {
    await (await jobOf(await queueOf(queue), jobId)).promote();
  },

  async retry({ queue, jobId, state }) {
    await (await jobOf(await queueOf(queue), jobId)).retry(state);
  },

  async retryJobs({ queue, opts }) {
    await (await queueOf(queue)).retryJobs(opts);
  },

  async promoteJobs({ queue, opts }) {
    await (await queueOf(queue)).promoteJobs(opts);
  },

  // 1 removed, 0 locked.
  async remove({ queue, jobId, removeChildren = true }) {
    return (await queueOf(queue)).remove(jobId, { removeChildren });
  },

  async removeUnprocessedChildren({ queue, jobId }) {
    await (await jobOf(await queueOf(queue), jobId)).removeUnprocessedChildren();
  },

  async removeChildDependency({ queue, jobId }) {
    return (await jobOf(await queueOf(queue), jobId)).removeChildDependency();
  },

  async getState({ queue, jobId }) {
    return (await jobOf(await queueOf(queue), jobId)).getState();
  },

  async getJob({ queue, jobId }) {
    const from = await queueOf(queue);
    const job = await Job.fromId(from, jobId);
    if (job && !(await raw.hexists(from.toKey(jobId), 'parentKey'))) {
      // Node reads the parent of a child that has left it from the child's options.
      job.parentKey = undefined;
    }
    return describe(job);
  },

  async getJobCounts({ queue, types = [] }) {
    return (await queueOf(queue)).getJobCounts(...types);
  },

  async getJobs({ queue, types, start = 0, end = -1, asc = false }) {
    const jobs = await (await queueOf(queue)).getJobs(types, start, end, asc);
    return jobs.map(job => (job ? job.id : null));
  },

  async isFinished({ queue, jobId, value = false }) {
    return scriptsOf(await queueOf(queue)).isFinished(jobId, value);
  },

  async setGlobalConcurrency({ queue, concurrency }) {
    await (await queueOf(queue)).setGlobalConcurrency(concurrency);
  },

  async removeGlobalConcurrency({ queue }) {
    await (await queueOf(queue)).removeGlobalConcurrency();
  },

  async setGlobalRateLimit({ queue, max, duration }) {
    await (await queueOf(queue)).setGlobalRateLimit(max, duration);
  },

  async removeGlobalRateLimit({ queue }) {
    await (await queueOf(queue)).removeGlobalRateLimit();
  },

  async rateLimit({ queue, duration }) {
    await (await queueOf(queue)).rateLimit(duration);
  },

  async getRateLimitTtl({ queue, max }) {
    return (await queueOf(queue)).getRateLimitTtl(max);
  },

  async removeDeduplicationKey({ queue, key }) {
    return (await queueOf(queue)).removeDeduplicationKey(key);
  },

  // ------------------------------------------------------------------------------- schedulers

  // The id of the job that the scheduler made, or null where it made none.
  async upsertScheduler({ queue, key, repeat, template }) {
    const job = await (await queueOf(queue)).upsertJobScheduler(key, repeat, template);
    return job ? job.id : null;
  },

  async removeScheduler({ queue, key }) {
    return (await queueOf(queue)).removeJobScheduler(key);
  },

  async getScheduler({ queue, key }) {
    return (await (await queueOf(queue)).getJobScheduler(key)) || null;
  },

  async getSchedulers({ queue, start = 0, end = -1, asc = true }) {
    return (await queueOf(queue)).getJobSchedulers(start, end, asc);
  },

  async countSchedulers({ queue }) {
    return (await queueOf(queue)).getJobSchedulersCount();
  },

  // For each case the next time in ms, null where there is none, or the text of the refusal.
  async cronNext({ cases }) {
    const { parseExpression } = require(
      require.resolve('cron-parser', { paths: [path.join(folder, 'node_modules', 'bullmq'), folder] }),
    );
    return cases.map(({ pattern, after, tz, end }) => {
      let interval;
      try {
        interval = parseExpression(pattern, {
          currentDate: new Date(after),
          tz,
          ...(end === null ? {} : { endDate: new Date(end) }),
        });
      } catch (error) {
        return String(error.message);
      }
      try {
        return interval.next().getTime();
      } catch (error) {
        return null;
      }
    });
  },

  async obliterate({ queue, force = true }) {
    await (await queueOf(queue)).obliterate({ force });
  },

  // ------------------------------------------------------------------------------- for real

  // A worker that runs. What it does with a job is said by the job's data:
  //   fail: n        throw in the first n attempts      message: the text of that error
  //   unrecoverable  throw UnrecoverableError           delay: ms of work before the end
  //   progress: v    report it                          log: a row, or several
  //   result: v      return it                          children: return their values, sorted
  //   hold: true     do not end before `workerRelease`
  async workerStart({ handle, queue, options = {} }) {
    const record = { runs: [], completed: [], failed: [], errors: [], waits: [], held: [] };
    const settle = () => {
      record.waits = record.waits.filter(wait => !wait());
    };
    const worker = new Worker(
      queue,
      async job => {
        record.runs.push({ id: job.id, attempt: job.attemptsMade, at: realNow() });
        settle();
        const data = job.data || {};
        if (data.progress !== undefined) {
          await job.updateProgress(data.progress);
        }
        for (const row of [].concat(data.log === undefined ? [] : data.log)) {
          await job.log(row);
        }
        if (data.delay) {
          await new Promise(done => setTimeout(done, data.delay));
        }
        if (data.hold) {
          await new Promise(done => record.held.push(done));
        }
        if (data.unrecoverable) {
          throw new bullmq.UnrecoverableError(data.message || 'for good');
        }
        if (data.fail && job.attemptsMade < data.fail) {
          throw new Error(data.message || `attempt ${job.attemptsMade + 1} failed`);
        }
        if (data.children) {
          return Object.values(await job.getChildrenValues()).sort();
        }
        return data.result === undefined ? null : data.result;
      },
      { connection, prefix, ...traced, ...options },
    );
    worker.on('completed', job => {
      record.completed.push(job.id);
      settle();
    });
    worker.on('failed', (job, error) => {
      record.failed.push({
        id: job && job.id,
        reason: error.message,
        final: !!(job && job.finishedOn),
      });
      settle();
    });
    worker.on('error', error => record.errors.push(error.message));
    running.set(handle, { worker, record });
    await worker.waitUntilReady();
  },

  // Answers when the worker has started `runs` jobs and seen `finished` ends (completed or failed
  // for good). The caller's own limit applies.
  async workerWait({ handle, runs = 0, finished = 0 }) {
    const { record } = running.get(handle);
    const reached = () =>
      record.runs.length >= runs &&
      record.completed.length + record.failed.filter(one => one.final).length >= finished;
    await new Promise(done => {
      const check = () => (reached() ? (done(), true) : false);
      if (!check()) {
        record.waits.push(check);
      }
    });
    return ops.workerStats({ handle });
  },

  // Lets the jobs end that the worker holds.
  async workerRelease({ handle }) {
    running.get(handle).record.held.splice(0).forEach(done => done());
  },

  async workerStats({ handle }) {
    const { runs, completed, failed, errors } = running.get(handle).record;
    return { runs, completed, failed, errors };
  },

  async workerStop({ handle, force = false }) {
    const { worker } = running.get(handle);
    await worker.close(force);
    const stats = await ops.workerStats({ handle });
    running.delete(handle);
    return stats;
  },

  async getWorkers({ queue }) {
    return (await queueOf(queue)).getWorkers();
  },

  // Collects every event of a queue from `from` on (`$`: from now; `0`: from the first).
  async eventsStart({ handle, queue, from = '$' }) {
    // The first read comes after the answer to this command: its `$` would be later than now.
    const [last] = from === '$' ? await raw.xrevrange(`${prefix}:${queue}:events`, '+', '-', 'COUNT', 1) : [];
    const lastEventId = from === '$' ? (last ? last[0] : '0') : from;
    const events = quiet(
      new QueueEvents(queue, { connection, prefix, lastEventId, autorun: false }),
    );
    const record = { seen: [], waits: [] };
    const emit = events.emit.bind(events);
    events.emit = (event, payload, id) => {
      if (id !== undefined && typeof payload === 'object' && !event.includes(':')) {
        record.seen.push({ event, id, ...payload });
        record.waits = record.waits.filter(wait => !wait());
      }
      return emit(event, payload, id);
    };
    listeners.set(handle, { events, record });
    await events.waitUntilReady();
    events.run().catch(error => console.error(String(error)));
  },

  // Answers when `count` events of the name (or of any name) have been seen.
  async eventsWait({ handle, event, count }) {
    const { record } = listeners.get(handle);
    await new Promise(done => {
      const check = () => {
        const seen = record.seen.filter(one => !event || one.event === event);
        return seen.length >= count ? (done(), true) : false;
      };
      if (!check()) {
        record.waits.push(check);
      }
    });
    return record.seen;
  },

  async eventsList({ handle }) {
    return listeners.get(handle).record.seen;
  },

  async eventsStop({ handle }) {
    const { events, record } = listeners.get(handle);
    listeners.delete(handle);
    await events.close();
    return record.seen;
  },

  async waitUntilFinished({ queue, jobId, handle, timeout }) {
    const job = await jobOf(await queueOf(queue), jobId);
    return job.waitUntilFinished(listeners.get(handle).events, timeout);
  },

  async batch({ commands }) {
    const answers = [];
    for (const { op, args } of commands) {
      answers.push(await answer(op, args || {}));
    }
    return answers;
  },

  async close() {
    for (const { worker } of running.values()) {
      await worker.close(true);
    }
    for (const { events } of listeners.values()) {
      await events.close();
    }
    for (const worker of workers.values()) {
      await worker.close(true);
    }
    if (flows) {
      await flows.close();
    }
    for (const other of others.values()) {
      await other.close();
    }
    for (const queue of queues.values()) {
      await queue.close();
    }
    if (raw) {
      raw.disconnect();
    }
  },
};

// One object of a class of BullMQ per queue.
const others = new Map();
function opened(kind, queue) {
  const key = `${kind} ${queue}`;
  if (!others.has(key)) {
    others.set(key, quiet(new bullmq[kind](queue, { connection, prefix })));
  }
  return others.get(key);
}

Object.assign(ops, require('./operations.js')({ queueOf, opened }));

// With `traced`: the ended spans, and a command below a span of the test's own.
ops.spans = async () => telemetry.spans();
ops.below = async ({ name, command, args }) => telemetry.below(name, () => ops[command](args));

// ---------------------------------------------------------------------------------- the pipe

async function answer(op, args) {
  try {
    if (!Object.hasOwn(ops, op)) {
      throw new Error(`no such operation: ${op}`);
    }
    setClock(args.now);
    const result = await ops[op](args);
    return { result: result === undefined ? null : result };
  } catch (error) {
    return {
      error: {
        message: String(error && error.message),
        name: String(error && error.name),
        code: error && typeof error.code === 'number' ? error.code : null,
      },
    };
  }
}

const lines = readline.createInterface({ input: process.stdin, terminal: false });
lines.on('line', async line => {
  if (!line.trim()) {
    return;
  }
  const { id, op, args } = JSON.parse(line);
  const reply = await answer(op, args || {});
  process.stdout.write(JSON.stringify({ id, ...reply }) + '\n');
});
// The parent has gone, or is done with us.
lines.on('close', () => process.exit(0));
