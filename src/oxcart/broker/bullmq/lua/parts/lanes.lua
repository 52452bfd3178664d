-- Lanes: queues whose names are the targets of their jobs (docs/decisions/60).
--
-- A lane's name is the text behind the "@" of its queue's name; `base` is the key prefix of the queue that it belongs
-- to. Needs base, gate, insert and, for claims, claiming.

-- Ms after which an unread wake key of a worker expires.
local WAKE = "60000"

local function lane_prefix(base, lane)
  return string.sub(base, 1, -2) .. "@" .. lane .. ":"
end

-- Wakes workers for a lane, by its name.
local function wake_for_lane(base, workers, lane)
  for _, worker in ipairs(call("ZRANGE", base .. workers, 0, -1)) do
    local key = base .. "ox:wake:" .. worker
    call("ZADD", key, 0, lane)
    call("PEXPIRE", key, WAKE)
  end
end

-- Wakes the crowded workers for several ready lanes, within the bounds of one call on workers and on lane names. A
-- worker that was not woken for all of them sees them at its own tick.
local CROWD, WORDS = 200, 1000
local function wake_for_lanes(base, lanes)
  local workers = #lanes > 0 and call("ZRANGE", base .. "ox:crowded", 0, CROWD - 1) or {}
  local words = {}
  for i = 1, math.min(#lanes, math.max(1, math.floor(WORDS / #workers))) do
    words[2 * i - 1], words[2 * i] = 0, lanes[i]
  end
  for _, worker in ipairs(workers) do
    local key = base .. "ox:wake:" .. worker
    call("ZADD", key, unpack(words))
    call("PEXPIRE", key, WAKE)
  end
end

-- Registers a lane that has a job, or will have one at the end of this call. The time is the server's: the clocks of
-- clients differ, and lanes that were not seen for a while are removed.
local function enter_lane(base, lane)
  if call("ZADD", base .. "ox:lanes", server_ms(), lane) == 1 then
    call("HSET", base .. "meta", "ox:lanes", "+")
    call("HSET", lane_prefix(base, lane) .. "meta", "ox:lanes", base)
    call("INCR", base .. "ox:lanes:version")
    wake_for_lane(base, "ox:listeners", lane)
  else
    wake_for_lane(base, "ox:crowded", lane)
  end
  call("SADD", base .. "ox:lanes:ready", lane)
end

-- Returns whether a job of this id is in the base queue or in a lane other than that of these keys.
local function is_elsewhere(base, prefix, id)
  if prefix ~= base and call("EXISTS", base .. id) == 1 then
    return true
  end
  local lane = call("HGET", base .. "ox:ids", id)
  local other = lane and lane_prefix(base, lane)
  return other and other ~= prefix and call("EXISTS", other .. id) == 1
end

-- Returns the priority of the first ready job, or nil.
local function head_of(prefix)
  if call("EXISTS", prefix .. "wait") == 1 then
    return 0
  end
  local first = call("ZRANGE", prefix .. "prioritized", 0, 0, "WITHSCORES")
  return first[2] and math.floor(tonumber(first[2]) / BAND)
end

-- As `head_of`, after due jobs were promoted; if none is ready, also returns when the next is due.
local function head_by_now(prefix, now)
  local head = head_of(prefix)
  if head then
    return head
  end
  local due = next_due(prefix)
  if due and due <= now then
    promote_due(prefix, read_gate(prefix), now, PROMOTE, PROMOTE_FEW)
    head, due = head_of(prefix), next_due(prefix)
  end
  return head, due
end

-- Claims from one of several lanes. They are part of the argument for the number of jobs: the number, the lane
-- of this script's keys, and the lanes to choose from, each behind an "@"; "base" is the base queue.
-- Takes the lane whose first job has the lowest priority, and the first such lane among equals. Takes no job that
-- comes behind the first job of another lane. Answers as `answer_claim` for a choice.
local function claim_in_lanes(codes, asked, limits_of)
  local lanes, count = {}, asked.wanted
  for lane in string.gmatch(ARGV[4], "@([^@]*)") do
    lanes[#lanes + 1] = lane
  end
  local own = table.remove(lanes, 1)
  local base = own == "base" and P or string.sub(P, 1, -(#own + 3)) .. ":"
  local prefixes, waits = {}, {}
  for i, lane in ipairs(lanes) do
    prefixes[i] = lane == "base" and base or lane_prefix(base, lane)
    waits[i] = prefixes[i] .. "wait"
  end
  local best, lowest, next_best, empty = nil, nil, nil, {}
  if call("EXISTS", unpack(waits)) == #waits then
    best, lowest, next_best = 1, 0, #waits > 1 and 0 or nil
  else
    for i, prefix in ipairs(prefixes) do
      local head, due = head_by_now(prefix, asked.now)
      if not head then
        empty[#empty + 1] = i
        empty[#empty + 1] = due and math.ceil(due) or 0
      elseif not lowest or head < lowest then
        best, lowest, next_best = i, head, lowest
      elseif not next_best or head < next_best then
        next_best = head
      end
    end
  end
  local claim, more = { jobs = {}, orphans = {}, limited = 0, count = 0 }, 0
  if best then
    P = prefixes[best]
    asked.count = count
    if next_best and count > 1 then
      local before = call("ZCOUNT", P .. "prioritized", "-inf", (next_best + 1) * BAND - 1)
      asked.count = math.min(count, call("LLEN", P .. "wait") + before)
      more = asked.count < count and call("ZCARD", P .. "prioritized") > before and 1 or 0
    end
    claim = claim_jobs(asked, limits_of)
  end
  claim.lane, claim.more, claim.empty = best or 0, more, empty
  return answer_claim(codes, claim, asked.now)
end
