-- Removes a job's data and notifies its parent.

-- Drops the note of a custom id with its job (docs/decisions/60). Only jobs in lanes have one, and a lane's name
-- contains an "@".
local bases = {}
local function drop_note(key)
  if not string.find(key, "@", 1, true) then
    return
  end
  local prefix, id = split_key(key)
  if bases[prefix] == nil then
    bases[prefix] = redis.pcall("HGET", prefix .. "meta", "ox:lanes")
  end
  local base = bases[prefix]
  if type(base) == "string" and base ~= "+" then
    local lane = string.sub(prefix, #base + 1, -2)
    if redis.pcall("HGET", base .. "ox:ids", id) == lane then
      call("HDEL", base .. "ox:ids", id)
    end
  end
end

local function delete_data(key)
  drop_note(key)
  return call("DEL", key, key .. ":logs", key .. ":dependencies", key .. ":processed", key .. ":failed",
    key .. ":unsuccessful")
end

-- Removes a child from its parent's list; a parent that waited for nothing else goes to the ready list.
-- Peers ignore the parent's delay and priority here, so every client that removes the child has the same effect.
local function detach_child(parent_key, child_key)
  if call("SREM", parent_key .. ":dependencies", child_key) == 0 then
    return
  end
  if call("SCARD", parent_key .. ":dependencies") > 0 then
    return
  end
  local prefix, id = split_key(parent_key)
  if call("ZREM", prefix .. "waiting-children", id) == 1 then
    insert_ready(prefix, read_gate(prefix), id, true)
    call("XADD", prefix .. "events", "*", "event", "waiting", "jobId", id, "prev", "waiting-children")
  end
end

local function detach_from_living_parent(key)
  local parent_key = peek(key, "parentKey")
  if parent_key and parent_key ~= "" and call("EXISTS", parent_key) == 1 then
    detach_child(parent_key, key)
  end
end

-- Removes old finished jobs to make room for a new one. A peer leaves their deduplication keys in place. A parent that
-- cannot be read is left alone as well: it must not block the others.
local function forget_jobs(prefix, ids)
  for _, id in ipairs(ids) do
    pcall(detach_from_living_parent, prefix .. id)
    delete_data(prefix .. id)
  end
end

-- Drops the deduplication record of a removed job, if the job still owns it.
local function drop_deduplication(prefix, key, id)
  local name = call("HGET", key, "deid")
  if name and redis.pcall("GET", prefix .. "de:" .. name) == id then
    call("DEL", prefix .. "de:" .. name, prefix .. "dn:" .. name)
  end
end
