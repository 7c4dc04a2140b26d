-- leases: reads when leases end; changes nothing.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, lease
-- RETURNS per task: the end of the lease (unix ms), or 0 when the lease is not current
open()
local reply = {}
for i = 3, #ARGV, 2 do
  local r = current_lease(ARGV[i], int(i + 1, 'lease', 0, 9007199254740991))
  local score = r and redis.call('ZSCORE', key('leased:' .. index_of(r.holder)), ARGV[i])
  reply[#reply + 1] = score and tonumber(score) + S.lag or r and now or 0
end
return finish(reply)
