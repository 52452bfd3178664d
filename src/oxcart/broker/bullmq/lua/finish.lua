-- Finishes attempts, and claims new jobs into the freed slots.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3-12 as in claim (4 may be 0: claim nothing)
--          13 how many attempts finish here; then groups of attempts that share most arguments:
--          kind, how many, token, time or "" for that of the call, and for each attempt
--          id, starts ("" or the `ats` of the claim), and by kind
--          c completed  value
--          f failed     reason, stacktrace ("" to leave it), attempts allowed, category or "", why it is a dead letter
--                       although attempts are left, or ""
--          r retry now  reason, stacktrace
--          d delay      reason or "", stacktrace, delay, and "" if the attempt counts. Otherwise "1", followed by the
--                       signal that the job waits for, if it waits for one, or "2" if its name has no handler
--          w return     (nothing)
--          h wait for its children  (nothing)
--          l return     for how many ms the queue is held: its rate limit permits no start
--          The time is followed by what else a group shares. For c and f that is the retention: "" for that of the
--          queue (`ox:retention`), "-1::" to keep all, or "count:age:limit" with empty parts for no bound. For r it is "L" or ""; for the others "". Then for c and f:
--          how many attempts had ended before, or "" to read that. A caller passes "" if the claimed record shows that
--          more depends on the end.
--          After the groups for how many minutes to keep counts of ended jobs, or ""; then, for each attempt that
--          failed: number of the item, category, code (for a pipeline). Number 0: the version of the worker's program.
-- Returns  { codes, jobs, limited, due, closed, active, orphans, repeated, now } as claim; one code per item: 1, 2 as 1
--          but its parent could not be notified, 0 it has no children to wait for (nothing changed), or
--          -1 no such job, -2 no lease, -3 not active, -4 children pending, -6 lease of another worker,
--          -9 a child failed, or an error text where the server refused that item alone
-- Events   `completed`; `failed`, `retries-exhausted`; `waiting`; `delayed`; `waiting-children`; then those of claim;
--          `drained` when no work is left
-- Keeps    a refused item changes nothing for its neighbours. An expired lease may still finish its attempt while
--          the job is active and no other worker started it (same `ats`).
-- include: base gate insert claiming attempts ending
-- include when needed: insert store parent removal deduplication metrics history failing gates buckets groups limiting lanes steps

function promoting.groups()
  return { park_promoted = seldom().park_promoted, tend_groups = seldom().tend_groups }
end
local asked = read_asked(3)
local kept = remembered()
if kept then
  return repeat_claim(kept, asked)
end

if tonumber(ARGV[13]) > MOST then
  refuse("ERR at most " .. MOST .. " attempts end in one call") -- Lua unpacks about 8000 values
end
count_items(tonumber(ARGV[13]))
local codes = {}
local finished, trimmed, purge = 0, false, 1000
-- The states to which the retention of the queue applies, and how many of their jobs a call removes.
local aging, AGED = {}, 50
-- Dependents that this call may still release.
local gated, TELL = false, 250

-- The id that has left `active` and is not yet elsewhere: a failure in between puts it back.
local between

-- The jobs that leave `active`, if the queue has limits per type or key.
local leavers = LIMITED and {}

-- Common beginning of every item. Returns the job's attributes, or a code below zero. The checks come in the
-- peers' order, so a refused call has changed the same things by then.
local function leave(index, kind, id, token, starts, fields, earlier)
  local key = key_of[index]
  local job
  if all_there and earlier and earlier ~= "" and not released[id] then
    job = { call("HGET", key, "parentKey"), false, earlier }
  else
    job = call("HMGET", key, "parentKey", "deid", "atm", "ats", "ox:history", "ox:lifetime", "processedOn", "pb",
      "ox:attempts", "attemptsMade")
    if not job[4] and call("EXISTS", key) == 0 then
      return -1
    end
  end
  if children and kind == "c" and call("EXISTS", key .. ":dependencies", key .. ":unsuccessful") > 0 then
    return call("EXISTS", key .. ":dependencies") == 1 and -4 or -9
  end
  local holder = not released[id] and holders[index]
  if holder and holder ~= token then
    return -6
  end
  if released[id] then
    write_active() -- the same job twice: it is no longer active
  end
  if not holder then
    local started = job[4] or call("HGET", key, "ats")
    if starts == "" or starts ~= started or not call("LPOS", active_key, id) then
      return -2
    end
  end
  if (kind == "c" or kind == "f") and job[1] and job[1] ~= "" then
    find_parent(job, key)
  end
  if ATTACHED then
    job.facts = read_attempt(key)
  end
  if LIMITED then
    leavers[#leavers + 1] = { id, call("HMGET", key, "name", "ox:limit", "ox:group"), kind == "w" }
  end
  release(index, id)
  if fields then
    call("HSET", key, unpack(fields))
  end
  if run_end and (kind == "c" or kind == "f") and not job[2] and (not job[1] or job[1] == "") then
    left[index] = true
    leaving = leaving + 1
  else
    write_active()
    run_end = nil
    if call("LREM", active_key, from_end(key, asked.now), id) == 0 then
      return -3
    end
  end
  active = active - 1
  between = id
  return job
end

-- Returns how many attempts had ended before.
local function ended_of(job)
  return attempts_made(job[3], job[10])
end

-- Applies the retention to finished jobs; at most `purge` removals in one call.
local function retain(set, wanted, time)
  write_places()
  local most, age, limit = string.match(wanted, "^([^:]*):([^:]*):([^:]*)$")
  if age ~= "" then
    local before = string.format("%.0f", time - tonumber(age) * 1000)
    local old = call("ZRANGEBYSCORE", set, "-inf", before, "LIMIT", 0,
      (tonumber(limit) or -1) >= 0 and math.min(tonumber(limit), purge) or purge)
    if #old > 0 then
      purge = purge - #old
      seldom().forget_jobs(P, old)
      call("ZREM", set, unpack(old))
    end
  end
  most = tonumber(most)
  if most and most > 0 then
    local surplus = math.min(call("ZCARD", set) - most, purge)
    if surplus > 0 then
      purge = purge - surplus
      local old = call("ZRANGE", set, 0, surplus - 1)
      seldom().forget_jobs(P, old)
      call("ZREM", set, unpack(old))
    end
  end
end

local function drained()
  write_active()
  if call("LLEN", P .. "wait") == 0 and call("LLEN", active_key) == 0 and call("ZCARD", P .. "prioritized") == 0 then
    call("XADD", events, "*", "event", "drained")
  end
end

-- Why a job that no worker could decode is a dead letter.
local UNDECODABLE = "undecodable"

-- Ends a job: `field` holds `value`, and the job goes to `set` unless it is not kept.
local function settle_job(job, key, id, time, set, field, value, wanted, category, code, dead)
  if not trimmed then
    trimmed = true
    trim_events()
  end
  if job[2] then
    seldom().close_window(P, job[2], id, tonumber(time))
    children = true -- a kept job may have become the child of a later item
  end
  local parent_key = job[1]
  if parent_key and parent_key ~= "" then
    local parent = job.parent
    gated = gated or string.find(parent_key, "~gates:", 1, true) ~= nil
    if set == "failed" then
      if parent then
        seldom().child_failed(parent, key, value, tonumber(time))
      end
    elseif parent then
      seldom().child_completed(parent_key, parent.queueKey .. ":", parent.id, key, value, tonumber(time))
    else
      local prefix, parent_id = split_key(parent_key)
      seldom().child_completed(parent_key, prefix, parent_id, key, value, tonumber(time))
    end
  end
  if job[6] then
    call("ZREM", P .. "ox:expiring", id)
  end
  local ended = ended_of(job) + 1
  if dead == UNDECODABLE then
    ended = 0 -- it did not run, and its fields stay as they are
  end
  if wanted ~= "" and string.sub(wanted, 1, 2) == "0:" then
    if gated and set == "failed" then
      call("HSET", key, "atm", ended, "ox:category", category or "", unpack(dead ~= "" and { "ox:dead", dead } or {}))
      seldom().mark_gate_failed(parent_key, seldom().failed_as(key))
    end
    seldom().delete_data(key)
    between = nil
    if parent_key and parent_key ~= "" then
      seldom().detach_child(parent_key, key)
    end
  else
    local place = places[set]
    local last = #place
    place[last + 1], place[last + 2] = time, id
    between = nil
    if category and category ~= "" then
      local more = { "ox:category", category }
      if code and code ~= "" then
        more[3], more[4] = "ox:code", code
      end
      if dead ~= "" then
        more[#more + 1], more[#more + 2] = "ox:dead", dead
      end
      for i = 1, job.more and #job.more or 0 do
        more[#more + 1] = job.more[i]
      end
      if dead ~= UNDECODABLE then
        more[#more + 1], more[#more + 2] = "atm", ended
      end
      call("HSET", key, field, value, "finishedOn", time, unpack(more))
    elseif job.more then
      call("HSET", key, "atm", ended, field, value, "finishedOn", time, unpack(job.more))
    else
      call("HSET", key, "atm", ended, field, value, "finishedOn", time)
    end
    if set == "failed" then
      call("HDEL", key, "defa")
    end
    if job[10] and dead ~= UNDECODABLE then
      call("HDEL", key, "attemptsMade") -- `atm` continues its count
    end
    if job.untold then
      call("HSET", key, "ox:untold", job.untold)
    end
    if wanted == "" then
      aging[set] = tonumber(time)
    elseif wanted ~= "-1::" then
      retain(P .. set, wanted, tonumber(time))
    end
  end
  job.ended_by = call("XADD", events, "*", "event", set, "jobId", id, field, value, "prev", "active")
  if minutes then
    seldom().count_end(set, tonumber(time), minutes)
  end
  finished = finished + 1
  return ended
end

-- For jobs with a history: records how the attempt ended, and the formal state that followed.
local function noted_end(job, index, outcome, to, why, time, reason, stacks)
  return seldom().history_of(job[5], { job[4], job[7], job[8], job[9] }, outcome, to, why, time, reason, stacks,
    categories[index], failure_codes[index])
end

local function end_of_item(job)
  if asked.count == 0 and active == 0 then
    drained()
  end
  return job.untold and 2 or 1
end

local kinds = {}

function kinds.c(index, at, id, token, starts, time, retention, earlier)
  local job = leave(index, "c", id, token, starts, nil, earlier)
  if type(job) == "number" then
    return job
  end
  if job[5] then
    job.more = noted_end(job, index, "completed", "completed", "the handler succeeded", time)
  end
  settle_job(job, key_of[index], id, time, "completed", "returnvalue", ARGV[at], retention)
  if job.facts then
    record_attempt(job.facts, job.ended_by, id, "completed", time)
  end
  return end_of_item(job)
end

-- Most jobs complete with neighbours in `active`, without parent, children, history, limits or a pipeline. They are
-- ended here, by three commands each and little else, because each call of a function and each step of Lua has a cost.
-- `plain` items from the first on have left `active` so, and `written` of them are written. From the first other
-- item on, all items end by `kinds`.
local is_plain, plain, written = false, 0, 0

local function look_for_plain()
  is_plain = run_end and all_there and not (children or minutes or ATTACHED or LIMITED)
end

local function complete_plainly(behind, at, token, time, earlier)
  local ARGV, call, ids, key_of, holders, events = ARGV, call, ids, key_of, holders, events
  local place = places.completed
  local last, ended = #place, (count_of(earlier) or 0) + 1
  for i = plain + 1, behind do
    local id, key = ids[i], key_of[i]
    if holders[i] ~= token then
      return
    end
    local parent = call("HGET", key, "parentKey")
    if parent and parent ~= "" then
      return
    end
    place[last + 1], place[last + 2] = time, id
    last, plain = last + 2, i
    local value = ARGV[at]
    call("HSET", key, "atm", ended, "returnvalue", value, "finishedOn", time)
    call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value, "prev", "active")
    written, at = i, at + 3
  end
end

-- Completes the items of a group up to `behind` as far as they are plain.
local function complete_group(behind, at, token, time, retention, earlier)
  if earlier == "" or (retention ~= "" and retention ~= "-1::") then
    return
  end
  if not trimmed then
    trimmed = pcall(trim_events)
    if not trimmed then
      return
    end
  end
  local before = plain
  local fine, fault = pcall(complete_plainly, behind, at, token, time, earlier)
  local many, ended = plain - before, written - before
  leaving, active, finished = leaving + many, active - many, finished + ended
  if retention == "" and many > 0 then
    aging.completed = tonumber(time)
  end
  if asked.count == 0 and active == 0 and fine and many > 0 then
    fine, fault = pcall(drained)
    written = fine and written or plain - 1
  end
  if plain > written then
    codes[plain] = type(fault) == "table" and fault.err or tostring(fault)
    written = plain
  end
end

local function end_singly()
  is_plain = false
  for i = 1, plain do
    codes[i] = codes[i] or 1
    left[i], released[ids[i]] = true, true
    released_ids[i], released_locks[i] = ids[i], lock_of[i]
  end
end

-- The other kinds, built when the first of them is needed.
local function make_other_kinds()
  local function priority_of(id)
    return tonumber(call("HGET", P .. id, "priority")) or 0
  end

  -- Returns the formal state in which a failed job ends, and why.
  local function failed_into(exhausted, category, dead)
    if category == "cancelled" then
      return "cancelled", "the job was cancelled"
    elseif dead == UNDECODABLE then
      return "dead_letter", "the job cannot be decoded"
    elseif dead ~= "" then
      return "dead_letter", dead == "lifetime" and "the lifetime is over" or "a dependency is in the dead letters"
    elseif exhausted and category ~= "permanent" then
      return "dead_letter", "the handler failed for now, no attempts are left"
    end
    return "failed", "the handler failed for good"
  end

  local function note(job, index, ...)
    if job[5] then
      call("HSET", key_of[index], unpack(noted_end(job, index, ...)))
    end
  end

  -- Counts a start that ended without being an attempt: workers may bound such starts.
  local function excuse(key)
    redis.pcall("HINCRBY", key, "ox:excused", 1)
  end

  function kinds.f(index, at, id, token, starts, time, retention, earlier)
    local fields = { "failedReason", ARGV[at] }
    if ARGV[at + 1] ~= "" then
      fields[3], fields[4] = "stacktrace", ARGV[at + 1]
    end
    local job = leave(index, "f", id, token, starts, fields, earlier)
    if type(job) == "number" then
      return job
    end
    local to, why
    if job[5] or job.facts then
      to, why = failed_into(ended_of(job) + 1 >= tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4])
    end
    if job[5] then
      job.more = noted_end(job, index, "failed", to, why, time, ARGV[at], ARGV[at + 1])
    end
    local ended = settle_job(job, key_of[index], id, time, "failed", "failedReason", ARGV[at], retention,
      ARGV[at + 3], failure_codes[index], ARGV[at + 4])
    if ended >= tonumber(ARGV[at + 2]) then
      call("XADD", events, "*", "event", "retries-exhausted", "jobId", id, "attemptsMade", ended)
    end
    record_attempt(job.facts, job.ended_by, id, "failed", time, ARGV[at], ARGV[at + 1], ARGV[at + 3],
      failure_codes[index], to)
    return end_of_item(job)
  end

  function kinds.r(index, at, id, token, starts, time, front)
    promote_due(P, read_gate(P), tonumber(time), PROMOTE)
    local job = leave(index, "r", id, token, starts,
      { "failedReason", ARGV[at], "stacktrace", ARGV[at + 1], "ox:ready", time })
    if type(job) == "number" then
      return job
    end
    count_attempt(P .. id, job[3], job[10])
    seldom().insert_waiting(P, read_gate(P), id, priority_of(id), front == "L")
    local entry = call("XADD", events, "MAXLEN", "~", max_events(P), "*",
      "event", "waiting", "jobId", id, "prev", "active")
    record_attempt(job.facts, entry, id, "retried", time, ARGV[at], ARGV[at + 1], categories[index],
      failure_codes[index])
    note(job, index, "retried", "scheduled", "an immediate retry", time, ARGV[at], ARGV[at + 1])
    return 1
  end

  function kinds.d(index, at, id, token, starts, time)
    local fields
    if ARGV[at] ~= "" or ARGV[at + 1] ~= "" then
      fields = { "failedReason", ARGV[at], "stacktrace", ARGV[at + 1] }
    end
    local job = leave(index, "d", id, token, starts, fields)
    if type(job) == "number" then
      return job
    end
    local counts, delay, signal = ARGV[at + 3] == "", ARGV[at + 2], string.sub(ARGV[at + 3], 2)
    if counts then
      count_attempt(P .. id, job[3], job[10])
    else
      excuse(P .. id)
    end
    if signal ~= "" then
      call("HSET", P .. id, "ox:waits", signal)
      if seldom().has_signal(P .. id, signal) then
        delay = "0" -- it arrived after the handler had looked for it
      end
    end
    local why = signal == "" and "the handler snoozed the job" or "the handler waits for a signal"
    if ARGV[at + 3] == "2" then
      call("HSET", P .. id, "ox:unhandled", job[4])
      why = "the worker has no handler for its name"
    end
    call("HSET", P .. id, "delay", delay, "ox:moved", time)
    local entry = seldom().insert_delayed(P, id, tonumber(time), tonumber(delay))
    seldom().wake_later(P)
    if not counts then
      local again = ended_of(job) > 0 -- the number of attempts decides what being delayed means
      local to = again and "retrying" or "delayed"
      record_attempt(job.facts, entry, id, "snoozed", time, ARGV[at], ARGV[at + 1], categories[index],
        failure_codes[index], to)
      note(job, index, "snoozed", to, why, time, ARGV[at])
    else
      record_attempt(job.facts, entry, id, "retried", time, ARGV[at], ARGV[at + 1], categories[index],
        failure_codes[index])
      note(job, index, "retried", "retrying", "the handler failed for now, attempts are left", time, ARGV[at],
        ARGV[at + 1])
    end
    return 1
  end

  function kinds.w(index, at, id, token, starts, time)
    local job = leave(index, "w", id, token, starts, { "ox:ready", time })
    if type(job) == "number" then
      return job
    end
    seldom().insert_front(P, read_gate(P), id, priority_of(id))
    local entry = call("XADD", events, "MAXLEN", "~", max_events(P), "*",
      "event", "waiting", "jobId", id, "prev", "active")
    record_attempt(job.facts, entry, id, "given_back", time)
    note(job, index, "given_back", "scheduled", "the worker gave the job back", time)
    return 1
  end

  function kinds.h(index, at, id, token, starts, time)
    local key = key_of[index]
    if call("EXISTS", key) == 0 then
      return -1
    elseif call("ZCARD", key .. ":unsuccessful") > 0 then
      return -9
    elseif call("SCARD", key .. ":dependencies") == 0 then
      return 0
    end
    local job = leave(index, "h", id, token, starts, { "ox:moved", time })
    if type(job) == "number" then
      return job
    end
    call("ZADD", P .. "waiting-children", time, id)
    between = nil
    excuse(key)
    call("XADD", events, "*", "event", "waiting-children", "jobId", id, "prev", "active")
    note(job, index, "waits", "pending", "the job waits for its children", time)
    return 1
  end

  -- The reason to return the job concerns the whole queue, whichever worker has the job by now.
  function kinds.l(index, at, id, token, starts, time)
    call("SET", read_gate(P).limiter or P .. "limiter", string.format("%.0f", HELD), "PX", ARGV[at])
    local code = kinds.w(index, at, id, token, starts, time)
    if code == 1 then
      excuse(key_of[index])
    end
    return code
  end
end

read_items()
read_leases()
find_run()
look_for_plain()
local at, index = 14, 0
while index < count do
  local kind, token, time, shared, earlier = ARGV[at], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  time = time ~= "" and time or asked.stamp
  if not kinds[kind] then
    make_other_kinds()
  end
  local finish, size = kinds[kind], sizes[kind]
  local behind = index + tonumber(ARGV[at + 1])
  at = at + 6
  if is_plain then
    if kind == "c" then
      complete_group(behind, at + 2, token, time, shared, earlier)
    end
    if plain < behind or codes[plain] then
      end_singly()
    end
    index, at = plain, at + size * (plain - index)
  end
  while index < behind do
    index = index + 1
    local ok, code = pcall(finish, index, at + 2, ARGV[at], token, ARGV[at + 1], time, shared, earlier)
    codes[index] = ok and code or (type(code) == "table" and code.err or tostring(code))
    -- A job that is put back has no lease: the stalled check recovers it.
    if not ok and between then
      write_active()
      if seldom().put_back(P, between) then
        active = active + 1
        if LIMITED then
          leavers[#leavers] = nil
        end
      end
    end
    between = nil
    at = at + size
  end
end
if is_plain then
  codes, released_ids, released_locks = count, ids, lock_of
end
write_active()
write_places()
write_releases()
if KEPT then
  -- Once per call: a job that ends must not wait for the removal of many others.
  local completed, failed = string.match(KEPT, "^(%d*):(%d*)$")
  for set, age in pairs({ completed = completed, failed = failed }) do
    if aging[set] and age ~= "" then
      pcall(retain, P .. set, ":" .. age .. ":" .. AGED, aging[set])
    end
  end
end
if LIMITED then
  pcall(seldom().leave_places, LIMITED, LIMITED_AT, leavers)
end
if gated then
  pcall(seldom().settle_opened, asked.now, TELL)
end
if minutes then
  seldom().write_counts(minutes)
end

local function limits_of(gate, now, count)
  return seldom().limiting(gate, now, count)
end
if not asked.count then
  if finished > 0 and active == 0 and not next_due(P) then
    drained()
  end
  if goes_to_first(asked) then
    return answer_claim(codes, claim_jobs(asked, limits_of), asked.now)
  end
  return seldom().claim_in_lanes(codes, asked, limits_of)
end
if asked.count == 0 then
  return answer_claim(codes, { jobs = {}, orphans = {}, limited = 0, count = 0 }, asked.now)
end
local claim = claim_jobs(asked, limits_of)
if finished > 0 and claim.count == 0 and not claim.due then
  drained()
end
return answer_claim(codes, claim, asked.now)
