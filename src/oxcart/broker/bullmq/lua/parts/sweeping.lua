-- Removes jobs by the hundred: whole states of a queue, or their old jobs.
--
-- As with peers such a removal is hard: a parent in the same queue that waited only for the removed child goes with it.
-- A parent in another queue is released without an event.

local function sweep_data(key)
  drop_note(key)
  -- Not DEL: a parent may have a hundred thousand recorded children, and UNLINK frees those in the background.
  call("UNLINK", key, key .. ":logs", key .. ":dependencies", key .. ":processed", key .. ":failed",
    key .. ":unsuccessful")
end

local leave_parent

-- Removes a waiting parent together with the last child that it waited for.
local function sweep_parent(prefix, id)
  if prefix ~= P then
    insert_ready(prefix, read_gate(prefix), id, true)
    return
  end
  local key = P .. id
  leave_parent(key, peek(key, "parentKey"))
  drop_deduplication(P, key, id)
  sweep_data(key)
end

function leave_parent(key, parent_key)
  if not parent_key or parent_key == "" or call("EXISTS", parent_key) == 0 then
    return
  end
  if call("SREM", parent_key .. ":dependencies", key) == 0 or call("EXISTS", parent_key .. ":dependencies") == 1 then
    return
  end
  local prefix, id = split_key(parent_key)
  if call("ZREM", prefix .. "waiting-children", id) == 1 then
    sweep_parent(prefix, id)
  end
end

local function sweep_job(id, parent_key, window)
  local key = P .. id
  leave_parent(key, parent_key)
  if window then
    drop_deduplication(P, key, id)
  end
  sweep_data(key)
end

-- Whether a job is the next run of a scheduler that still exists: without it the scheduler would stop.
local function is_next_run(id, scheduler)
  local at = scheduler and call("ZSCORE", P .. "repeat", scheduler)
  return at and id == "repeat:" .. scheduler .. ":" .. at
end
