'use strict';
/*
 * BullMQ's telemetry with a tracer that keeps its spans in memory.
 *
 *   const telemetry = require('./telemetry.js')(folder);
 *   new Queue(name, { telemetry: telemetry.bullmq });
 *   telemetry.spans();   // every ended span
 */

module.exports = folder => {
  const from = name => require(require.resolve(name, { paths: [folder] }));
  const api = from('@opentelemetry/api');
  const sdk = from('@opentelemetry/sdk-trace-node');
  const { BullMQOtel } = from('bullmq-otel');

  const memory = new sdk.InMemorySpanExporter();
  const provider = new sdk.NodeTracerProvider({
    spanProcessors: [new sdk.SimpleSpanProcessor(memory)],
  });
  provider.register(); // the global tracer, W3C's propagation and a context that follows promises
  const tracer = api.trace.getTracer('test');

  return {
    // 1.3 takes a name, 2.0 options; without either both have the same.
    bullmq: new BullMQOtel(),
    spans: () =>
      memory.getFinishedSpans().map(span => ({
        name: span.name,
        trace: span.spanContext().traceId,
        id: span.spanContext().spanId,
        parent: span.parentSpanContext ? span.parentSpanContext.spanId : null,
        attributes: span.attributes,
      })),
    // Runs a function below a span of the test's own.
    below: (name, run) =>
      tracer.startActiveSpan(name, async span => {
        try {
          return await run();
        } finally {
          span.end();
        }
      }),
  };
};
