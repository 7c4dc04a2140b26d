-- leases_of: reads which leases a holder has, the earliest to end first, without sticky ones;
-- changes nothing.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 how many to pass over  4 leases at most
-- RETURNS {id, lease, id, lease …, and how many were looked at}
open()
local from, most = int(3, 'leases passed over', 0, NEVER), int(4, 'leases', 1, 1000)
local ids, found = redis.call('ZRANGE', key('leased:' .. CALLER), from, from + most - 1), {}
for i = 1, #ids do
  local r = tries_get(ids[i])
  if r and r.holder == CALLER and not r.sticky then
    found[#found + 1], found[#found + 2] = ids[i], r.lease
  end
end
found[#found + 1] = #ids
return finish(found)
