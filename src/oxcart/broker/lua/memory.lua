-- The journal that makes a call repeatable, and the probes with which a script begins.
--
-- ARGV[1], ARGV[2] are always (slot, number) of the call. Needs `P`, the prefix of all keys, and `call`.

-- For how many seconds a reply is kept for a caller that lost it.
local MEMORY = "600"

local slot_key = ARGV[1] ~= "" and (P .. "ox:call:" .. ARGV[1]) or nil

-- A key that never exists. While a slot of a cluster moves to another node key by key, a script fails half-way at
-- the first key that is missing here. Reading this key first makes it fail before any write.
local NEVER = P .. "ox:call"

-- Ends the script with an error in the server's form. Before Redis 7 that takes a text (broker/link.py).
local function refuse(text)
  error(redis.REDIS_VERSION_NUM and { err = text } or text)
end

local function asked_of_slot(...)
  local answer = redis.pcall(...)
  if type(answer) == "table" and answer.err then
    if string.find(answer.err, "WRONGTYPE", 1, true) then
      return nil -- what a peer has spoiled counts as absent: otherwise every call of the slot would fail
    end
    local moving = string.find(answer.err, "non local key", 1, true)
    refuse(moving and "TRYAGAIN the slot is on its way to another node" or answer.err)
  end
  return answer
end

-- Returns the journaled reply of this call, or nil. The caller gave up a call that is older than the last one of its
-- slot; it arrived late through a dead connection and must not be applied. A reply that cannot be read counts as none.
local function recalled()
  if slot_key then
    local kept = asked_of_slot("GET", slot_key)
    if kept then
      local last, this = tonumber(string.match(kept, "^(%d+):")), tonumber(ARGV[2])
      if last == this then
        asked_of_slot("EXISTS", NEVER)
        local fine, answer = pcall(cmsgpack.unpack, string.sub(kept, string.find(kept, ":", 1, true) + 1))
        if fine and type(answer) == "table" then
          return answer
        end
      elseif last and last > this then
        refuse("OXSTALE call " .. ARGV[2] .. " came after call " .. last .. " of its slot")
      end
    end
  end
  return nil
end

-- The same, and checks whether the script can run at all.
-- The first write of a script must be a command that the server refuses when it is out of memory, so that a script
-- runs completely or not at all. SETRANGE with nothing to write is that probe. A script whose first write is already
-- of that kind declares it.
local function remembered(probes_itself)
  local answer = recalled()
  if answer then
    return answer
  end
  if probes_itself then
    asked_of_slot("EXISTS", NEVER)
  else
    asked_of_slot("SETRANGE", NEVER, 0, "")
  end
  return nil
end

local function remember(answer)
  if slot_key then
    call("SET", slot_key, ARGV[2] .. ":" .. cmsgpack.pack(answer), "EX", MEMORY)
  end
  return answer
end
