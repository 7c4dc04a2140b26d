-- locks: a lock is a task that is there while somebody holds it (see lock_acquire.lua).

-- Whatever ends the lease on a lock, nothing of it stays, and nodes that wait are notified.
local function unlock(id)
  records_drop({ id })
  tries_drop(id)
  over(id)
end

-- The lock under its fence number: its body and tries record; nil when it is not held under that
-- one.
local function locked(name, fence)
  local t, r = task_get(name), tries_get(name)
  if t and r and r.holder ~= '' and unpack_struct('>d', t.payload) == fence then return t, r end
  return nil
end
