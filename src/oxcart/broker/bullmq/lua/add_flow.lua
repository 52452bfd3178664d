-- Adds trees of jobs, over several queues of one slot: all of them or none.
--
-- KEYS[1]  meta of the queue of the first job
-- ARGV     1 slot, 2 number of the call
--          3 key of the job whose children all trees become, or "", 4 the lease under which that job runs,
--          or "" to skip the lease check
--          5 how many queues, and the prefix of each
--          then how many jobs, each id once, parents before their children; for each: number of its queue, and
--          id, name, data, opts, timestamp, delay, priority, flags, number of further hash fields, and these
--          (as in parts/adding.lua)
-- Returns  { 1, codes }: one code per job, 1 added, 0 the id existed and is a child now; or nothing was
--          written and { 0, id } a deduplication window kept the tree out: the job that owns it,
--          { -1, id } the running job is gone, { -2, id } or { -6, id } its lease is lost, { -5, id } the
--          parent is gone, { -7, id } a job of this id belongs to another living parent,
--          { -13, id } or is above its new one
-- Events   per job `added`, and `waiting`, `delayed` or `waiting-children`; `duplicated` for an id that exists
-- Keeps    a parent is released only when the whole tree is stored, even if all its children have completed
-- include: base gate insert store parent removal window adding

local answer = remembered()
if answer then
  return answer
end

local gates, at = {}, 6 + tonumber(ARGV[5])
local jobs, count, from = {}, tonumber(ARGV[at]), at + 1
for i = 1, count do
  local prefix = ARGV[5 + tonumber(ARGV[from])]
  jobs[i], from = read_tied(from + 1)
  jobs[i].prefix = prefix
end

local parent_key, token = ARGV[3], ARGV[4]
local function refusal()
  if parent_key ~= "" and call("EXISTS", parent_key) == 0 then
    return { token ~= "" and -1 or -5, parent_key }
  end
  if token ~= "" then
    local holder = call("GET", parent_key .. ":lock")
    if holder ~= token then
      return { holder and -6 or -2, parent_key }
    end
  end
  for _, job in ipairs(jobs) do
    if not gates[job.prefix] then
      -- Keys of another type refuse the call here, before anything is written.
      call("LLEN", job.prefix .. "wait")
      call("LLEN", job.prefix .. "paused")
      for _, set in ipairs({ "delayed", "prioritized", "waiting-children" }) do
        call("ZCARD", job.prefix .. set)
      end
      gates[job.prefix] = read_gate(job.prefix)
    end
    local taken = is_taken(job.prefix, job)
    if taken then
      return { taken, job.id }
    end
  end
end

local refused = refusal()
if refused then
  return remember(refused)
end

-- A window may keep the first job out; then no other job is added.
local function count_others()
  local counts = {}
  for i = 2, #jobs do
    local prefix = jobs[i].prefix
    counts[prefix] = (counts[prefix] or 0) + 1
    jobs[i].counted = true
  end
  for prefix, number in pairs(counts) do
    call("INCRBY", prefix .. "id", number)
  end
end

local codes, later = {}, {}
for i, job in ipairs(jobs) do
  job.has_parent = true -- parents come first, and the common parent was checked above
  local code = add_tied(job.prefix, gates[job.prefix], job, later)
  if type(code) == "table" then
    return remember({ 0, code[1] }) -- only the first can have a window: nothing else was added
  end
  codes[i] = code
  if i == 1 then
    count_others()
  end
end
for _, parent in ipairs(later) do
  release_if_childless(parent[1], parent[2], parent[3])
end
return remember({ 1, codes })
