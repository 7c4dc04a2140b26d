-- lock_renew: prolongs the hold of locks from now on.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per lock: name, fence, lease ms
-- RETURNS per lock: {lease, lease_end_ms}, or {0, 0} when it is not held under that fence
open()
local items = {}
for i = 3, #ARGV, 3 do
  items[#items + 1] =
    { ARGV[i], int(i + 1, 'fence', 0, 9007199254740991), int(i + 2, 'lease ms', 1, NEVER / 2) }
end
local function renew(name, fence, lease_ms)
  local t, r = locked(name, fence)
  if not t then return { 0, 0 } end
  local lease_end, index = now + lease_ms, key('leased:' .. index_of(r.holder))
  redis.call('ZREM', index, name)
  if r.lease_ms ~= lease_ms then
    r.lease_ms = lease_ms
    tries_put(name, r)
  end
  redis.call('ZADD', index, text(lease_clock() + lease_ms), name)
  note(lease_end)
  return { r.lease, lease_end }
end
local reply = {}
for i = 1, #items do
  reply[i] = renew(unpack(items[i]))
end
return finish(reply)
