-- Checks the lease of a worker that writes to its running job.

-- Returns -1 if there is no such job, -2 if it has no lease, -6 if another worker has it; nil if the caller has it.
local function lease_fault(id, worker)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    return -1
  end
  local holder = call("GET", P .. "jobs:lock:" .. id)
  if holder ~= worker then
    return holder and -6 or -2
  end
  return nil
end
