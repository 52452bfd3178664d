// A Node producer: adds jobs that a Python worker runs, and waits for their results.
const { Queue, QueueEvents } = require("bullmq");

const url = new URL(process.env.OXCART_URL || "redis://127.0.0.1:6379");
const connection = { host: url.hostname, port: Number(url.port) || 6379 };

async function main() {
  const queue = new Queue("greetings", { connection });
  const events = new QueueEvents("greetings", { connection });
  await events.waitUntilReady();
  for (const name of ["Ada", "Grace"]) {
    const job = await queue.add("greet", { name }, { attempts: 3 });
    console.log(await job.waitUntilFinished(events, 20000));
  }
  await events.close();
  await queue.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
