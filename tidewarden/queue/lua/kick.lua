-- kick: makes buried tasks ready again; their attempts, losses and TTL are forgotten.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most  4 id ("": any)  5 prefix of the reason ("": any)  6 rank to go on from
--         7 only those buried by then (unix ms; 0 or none: by now)  8 less so many ms
-- RETURNS {moved, rank to go on from | -1}
open()
local most, id, prefix, from = int(3, 'count', 0, 1000), ARGV[4], ARGV[5], int(6, 'rank', 0, NEVER)
local till = (ARGV[7] and int(7, 'till', 0, NEVER) or 0)
if till == 0 then till = now - (ARGV[8] and int(8, 'age', 0, NEVER) or 0) end
local moved = 0
local function kick(name)
  local t, r, unreadable = both_get(name)
  -- It may be the record of tries alone, which is forgotten.
  if unreadable then t = task_get(name) end
  -- A stray, or nobody can read it: passed by, for the next round begins behind it.
  if not t then return end
  redis.call('ZREM', key('buried'), name)
  if r or unreadable then tries_drop(name) end
  if t.expires > 0 then
    t.expires = 0
    task_put(name, t)
  end
  make_ready(name, t)
  count('kicked')
  tally(name, 'kick')
  moved = moved + 1
end
if id ~= '' then
  if redis.call('ZSCORE', key('buried'), id) then kick(id) end
  return finish({ moved, -1 })
end
local ids, seen, more = buried_page(from, most, prefix, till)
for i = 1, #ids do
  kick(ids[i])
end
return finish({ moved, more and from + seen - moved or -1 })
