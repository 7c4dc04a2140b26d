-- kick_delayed: makes delayed tasks ready now, those first that would be next.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most  4 id ("": any)
-- RETURNS how many
open()
local most, id = int(3, 'count', 0, 1000), ARGV[4]
local ids, moved = {}, 0
if id ~= '' then
  ids[1] = id
else
  local first = delayed_first(most)
  for i = 1, #first, 2 do
    ids[#ids + 1] = first[i]
  end
end
for i = 1, #ids do
  local t, r = both_get(ids[i])
  if t and locate(ids[i], t, r) == 'delayed' then
    index_remove(ids[i], t, r, 'delayed')
    if r and r.lease_ms > 0 then -- when it was due by an end of a lease
      r.lease_ms = 0
      tries_put(ids[i], r)
    end
    make_ready(ids[i], t)
    count('kicked')
    tally(ids[i], 'kick')
    moved = moved + 1
  end
end
return finish(moved)
