-- Adds jobs that wait for others, new or existing, over several queues of one slot: all of them or none.
--
-- KEYS[1]  meta of the queue of the first job
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua)
--          4 how many queues, and the prefix of each; for a lane the prefix of its base queue, a line break and its name
--          then how many jobs, dependencies before their dependents; for each: number of its queue, and
--          id, name, data, opts, timestamp, delay, priority, flags, number of further hash fields, and these
--          (as in parts/adding.lua). Flags also: "I" and ms for a job with an idempotency key, in the field `ox:idem`
--          then how many dependencies; for each: number of the job that waits, kind (`a` AFTER, `y` AFTER_ANY),
--          number of the job that it waits for, or 0 and: number of its queue, its id
-- Returns  { 1, codes }: one code per job, 1 added, 0 a job of this id existed and is left as it is, { id, 1 } the job
--          that owns its idempotency key, which takes its place; or nothing was written and { -15, key } there is no
--          such job to wait for, { -16, id } the chain behind it is too long
-- Events   per job `added`, and `waiting`, `delayed` or `waiting-children`; `duplicated` for an id that exists; then
--          those of jobs whose dependencies have already ended
-- Keeps    a job is released only when all its dependencies are known, and at most once
-- include: base gate insert store attempts parent removal window adding failing gates lanes

local answer = remembered()
if answer then
  return answer
end

local DEEPEST, ROOM = 100, 2000
local now, queues = tonumber(time_of(ARGV[3])), tonumber(ARGV[4])
local prefixes, lanes = {}, {} -- of each queue; and by prefix: { prefix of the base queue, name of the lane }
for i = 1, queues do
  local base, lane = string.match(ARGV[4 + i], "^(.-)\n(.+)$")
  prefixes[i] = lane and lane_prefix(base, lane) or ARGV[4 + i]
  lanes[prefixes[i]] = lane and { base, lane }
end
local jobs, count, from = {}, tonumber(ARGV[5 + queues]), 6 + queues
for i = 1, count do
  local prefix = prefixes[tonumber(ARGV[from])]
  local life = string.match(ARGV[from + 8], "I(%d+)")
  jobs[i], from = read_tied(from + 1)
  jobs[i].prefix, jobs[i].edges, jobs[i].depth, jobs[i].life = prefix, {}, 1, life
end
for at = from + 1, from + 5 * tonumber(ARGV[from]), 5 do
  local job, edge = jobs[tonumber(ARGV[at])], { kind = ARGV[at + 1], job = jobs[tonumber(ARGV[at + 2])] }
  if not edge.job then
    edge.prefix, edge.id = prefixes[tonumber(ARGV[at + 3])], ARGV[at + 4]
  end
  job.edges[#job.edges + 1] = edge
end

-- Applies what a job inherits from its dependency: a place behind it, and its priority if that is higher.
local function inherit(job, priority, depth)
  job.priority = math.min(job.priority, priority)
  job.depth = math.max(job.depth, depth + 1)
end

-- Existing jobs by key: { priority, depth }, or false if there is no such job; and how they ended.
local known_jobs, known_ends = {}, {}

local function look_at(key)
  if known_jobs[key] == nil then
    local known = call("HMGET", key, "timestamp", "priority", "ox:depth")
    known_jobs[key] = known[1] and { tonumber(known[2]) or 0, tonumber(known[3]) or 1 }
  end
  return known_jobs[key]
end

local function end_of(edge)
  local key = edge.prefix .. edge.id
  if not known_ends[key] then
    known_ends[key] = { ended_as(edge.prefix, edge.id) }
  end
  return known_ends[key][1], known_ends[key][2]
end

-- Lets the job that owns a job's idempotency key take its place. A key whose job is gone has no owner.
local function find_owner(job)
  for i = 1, #job.extras, 2 do
    if job.extras[i] == "ox:idem" then
      job.key = job.prefix .. "ox:idem:" .. #job.name .. ":" .. job.name .. ":" .. job.extras[i + 1]
    end
  end
  local owner = call("GET", job.key)
  if owner and look_at(job.prefix .. owner) then
    job.id, job.owned = owner, true
  end
end

local gates = {}
local function refusal()
  for _, job in ipairs(jobs) do
    if not gates[job.prefix] then
      -- Keys of another type refuse the call here, before anything is written.
      call("LLEN", job.prefix .. "wait")
      call("LLEN", job.prefix .. "paused")
      for _, set in ipairs({ "delayed", "prioritized", "waiting-children", "completed", "failed" }) do
        call("ZCARD", job.prefix .. set)
      end
      gates[job.prefix] = read_gate(job.prefix)
    end
    if job.life and not look_at(job.prefix .. job.id) then
      find_owner(job)
    end
    local known = look_at(job.prefix .. job.id)
    job.exists = known and true or false
    local base = lanes[job.prefix] and lanes[job.prefix][1] or gates[job.prefix].base
    if not known and base and is_elsewhere(base, job.prefix, job.id) then
      job.exists, job.edges = true, {}
    end
    if known then
      job.priority, job.depth, job.edges = known[1], known[2], {}
    end
    for _, edge in ipairs(job.edges) do
      if edge.job then
        edge.prefix, edge.id = edge.job.prefix, edge.job.id
        inherit(job, edge.job.priority, edge.job.depth)
      else
        local of = look_at(edge.prefix .. edge.id)
        if not of then
          return { -15, edge.prefix .. edge.id }
        end
        inherit(job, of[1], of[2])
      end
    end
    if job.depth > DEEPEST then
      return { -16, job.id }
    end
  end
end

local refused = refusal()
if refused then
  return remember(refused)
end

for prefix, at in pairs(lanes) do
  if gates[prefix] then -- it has jobs here; of others, jobs only wait for one in it
    enter_lane(at[1], at[2])
    gates[prefix] = read_gate(prefix) -- now with the limits of its base queue
  end
end

local codes, ended = {}, {}
for i, job in ipairs(jobs) do
  local key, any, waits_for = job.prefix .. job.id, {}, {}
  job.waits = #job.edges > 0
  for at, edge in ipairs(job.edges) do
    waits_for[at] = edge.prefix .. edge.id
    if edge.kind == "y" then
      any[#any + 1] = waits_for[at]
    end
  end
  if job.waits then
    job.extras[#job.extras + 1] = "ox:depth"
    job.extras[#job.extras + 1] = job.depth
  end
  if #any > 0 then
    job.extras[#job.extras + 1] = "ox:any"
    job.extras[#job.extras + 1] = cjson.encode(any)
  end
  local at = lanes[job.prefix]
  if at and not job.exists and string.find(job.opts, '"jobId"', 1, true) then
    call("HSET", at[1] .. "ox:ids", job.id, at[2]) -- as in add.lua: ids of clients are unique over all lanes
  end
  codes[i] = add_tied(job.prefix, gates[job.prefix], job)
  if job.owned then
    codes[i] = { job.id, 1 }
  elseif job.key then
    call("SET", job.key, job.id, "PX", job.life)
  end
  if job.waits then
    call("SADD", key .. ":dependencies", unpack(waits_for)) -- at most 1000
  end
  for _, edge in ipairs(job.edges) do
    local outcome, value
    if not edge.job or edge.job.exists then
      outcome, value = end_of(edge)
    end
    if outcome then
      ended[#ended + 1] = { key, edge.kind, edge.prefix .. edge.id, outcome, value }
    else
      attach(edge.prefix, edge.id, key, edge.kind, now)
    end
  end
end
for _, one in ipairs(ended) do
  meet(one[1], one[2], one[3], one[4], one[5], now)
end
settle_opened(now, ROOM)
return remember({ 1, codes })
