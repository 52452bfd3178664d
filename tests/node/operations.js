'use strict';
/*
 * Operations on a whole queue, for driver.js: what each of BullMQ's own calls does, and nothing more.
 *
 * `context` is what the driver has open: queueOf(name), and a function that makes an object with a connection
 * of its own and keeps it until the end.
 */
module.exports = ({ queueOf, opened }) => ({
  // The ids that were removed.
  async clean({ queue, grace = 0, most = 0, state }) {
    return (await queueOf(queue)).clean(grace, most, state);
  },

  async drain({ queue, delayed = false }) {
    await (await queueOf(queue)).drain(delayed);
  },

  async trimEvents({ queue, maxLength }) {
    return (await queueOf(queue)).trimEvents(maxLength);
  },

  async getMetrics({ queue, state, start, end }) {
    return (await queueOf(queue)).getMetrics(state, start, end);
  },

  async getCountsPerPriority({ queue, priorities }) {
    return (await queueOf(queue)).getCountsPerPriority(priorities);
  },

  async publishEvent({ queue, event, maxEvents }) {
    await opened('QueueEventsProducer', queue).publishEvent(event, maxEvents);
  },

  async removeOrphanedJobs({ queue }) {
    return (await queueOf(queue)).removeOrphanedJobs();
  },
});
