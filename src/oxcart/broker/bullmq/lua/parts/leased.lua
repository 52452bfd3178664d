-- Checks the lease of a worker that writes to its running job.

-- Returns -1 if there is no such job, -2 if it has no lease, -6 if another worker has it; nil if the caller has it.
local function lease_fault(key, token)
  if call("EXISTS", key) == 0 then
    return -1
  end
  local holder = call("GET", key .. ":lock")
  if holder ~= token then
    return holder and -6 or -2
  end
  return nil
end
