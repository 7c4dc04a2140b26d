-- leases_of: reads which leases a holder has, the earliest to end first, without sticky ones;
-- changes nothing.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 how many to pass over  4 leases at most
--         5 the uuid under which they stand instead of the holder (none: the holder)
-- RETURNS {id, lease, id, lease …, and how many were looked at}
open()
local from, most = int(3, 'leases passed over', 0, NEVER), int(4, 'leases', 1, 1000)
local uuid, holder, ids, found = ARGV[5], CALLER, nil, {}
if uuid then
  if #uuid ~= 32 or not string.match(uuid, '^%x+$') then refuse('BADARG no uuid: ' .. uuid) end
  holder = '~' .. uuid
  ids = redis.call(
    'ZRANGEBYLEX',
    key('held'),
    '[' .. uuid,
    '(' .. uuid .. '\255',
    'LIMIT',
    text(from),
    text(most)
  )
  for i = 1, #ids do
    ids[i] = string.sub(ids[i], 33)
  end
else
  ids = redis.call('ZRANGE', key('leased:' .. CALLER), from, from + most - 1)
end
for i = 1, #ids do
  local r = tries_get(ids[i])
  if r and r.holder == holder and not r.sticky then
    found[#found + 1], found[#found + 2] = ids[i], r.lease
  end
end
found[#found + 1] = #ids
return finish(found)
