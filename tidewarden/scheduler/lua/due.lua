-- due: reads the schedules whose tick has come, the earliest first, without their payloads.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 schedules at most
-- RETURNS {now_ms, next tick ms | -1, {name, position in the order of ticks ms, true tick ms,
--         stamp, anchor ms, spec} …}
open()
local most = int(3, 'schedules', 1, 1000)
local names =
  redis.call('ZRANGEBYSCORE', key('ticks'), '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, most)
local rows = {}
for i = 1, #names, 2 do
  local row = row_get(names[i])
  local position = tonumber(names[i + 1])
  if row and (position < 0 or position % 1 ~= 0) then -- no tick is so: somebody else wrote it
    position = math.max(0, math.floor(position))
    -- A removal first: a full store lets the script go on.
    redis.call('ZREM', key('ticks'), names[i])
    redis.call('ZADD', key('ticks'), text(position), names[i])
  end
  if row then
    rows[#rows + 1] = { names[i], position, tick_of(names[i]), row.stamp, row.anchor, row.spec }
  else
    row_drop(names[i])
    count('strays')
  end
end
return finish({ now, note_ticks(), rows })
