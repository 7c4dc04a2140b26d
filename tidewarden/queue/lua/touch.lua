-- touch: prolongs leases from now on.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, lease, lease ms (0: as it was taken)
-- RETURNS per task: the new end of the lease (unix ms), or 0 when the lease is not current
open()
local items = {}
for i = 3, #ARGV, 3 do
  items[#items + 1] =
    { ARGV[i], int(i + 1, 'lease', 0, 9007199254740991), int(i + 2, 'lease ms', 0, NEVER) }
end
local reply = {}
for i = 1, #items do
  local id, lease, lease_ms = unpack(items[i])
  local r = current_lease(id, lease)
  if r then
    local index = key('leased:' .. index_of(r.holder))
    redis.call('ZREM', index, id)
    if lease_ms > 0 then
      r.lease_ms = lease_ms
      tries_put(id, r)
    end
    local lease_end = now + r.lease_ms
    redis.call('ZADD', index, lease_clock() + r.lease_ms, id)
    note(lease_end)
    reply[i] = lease_end
  else
    reply[i] = 0
  end
end
return finish(reply)
