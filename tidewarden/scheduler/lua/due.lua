-- due: the schedules whose tick has come, earliest first, without their payloads.
-- KEYS    1 the shard  2 the view
-- ARGV    3 schedules at most
-- RETURNS {now_ms, next tick ms | -1, {name, place in the order of ticks ms, true tick ms, stamp, anchor ms, spec} …}
open()
local most = int(3, 'schedules', 1, 1000)
local names = redis.call('ZRANGEBYSCORE', key('ticks'), '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, most)
local rows = {}
for i = 1, #names, 2 do
  local row = row_get(names[i])
  if row then
    rows[#rows + 1] = {names[i], tonumber(names[i + 1]), tick_of(names[i]), row.stamp, row.anchor, row.spec}
  else
    row_drop(names[i])
    count('strays')
  end
end
return finish({now, note_ticks(), rows})
