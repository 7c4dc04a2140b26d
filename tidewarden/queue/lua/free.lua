-- free: leases end as releases, whoever holds them; sticky ones stay.
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most
-- RETURNS how many leases ended
open()
local most, ended = int(3, 'tasks', 1, 1000), 0
for holder in string.gmatch(S.holders, '%S+') do
  local index, from = key('leased:' .. holder), 0
  while ended < most do
    local ids = redis.call('ZRANGE', index, from, from + math.min(100, most - ended) - 1)
    if #ids == 0 then break end
    for i = 1, #ids do
      local t, r = task_get(ids[i]), tries_get(ids[i])
      if t and r and r.holder == holder and not r.sticky then
        end_lease(ids[i], t, r, 'release')
        ended = ended + 1
      else
        from = from + 1
      end
    end
  end
end
return finish(ended)
