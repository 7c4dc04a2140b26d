-- put: writes a schedule's row and its first tick. A row that says the same already is kept, with
-- its anchor and its tick. A schedule that is paused stays so, whatever the row says.
-- DURABILITY system
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3 name
--         4 first tick ms
--         5 stamp
--         6 anchor ms
--         7 spec
--         8 task
--         9 payload
--         10 schedules of a shard at most
-- RETURNS {1 written | 0 kept, next tick ms}; error FULL when the shard has no room for another
open()
effect = 'grows'
local name, tick, anchor, most =
  ARGV[3],
  int(4, 'tick', 0, NEVER - 1),
  int(6, 'anchor', 0, NEVER - 1),
  int(10, 'schedules', 1, NEVER)
if #ARGV ~= 10 then refuse('BADARG put takes eight arguments of its own') end
local old = row_get(name)
if old and old.spec == ARGV[7] and old.task == ARGV[8] and old.payload == ARGV[9] then
  return finish({ 0, tick_of(name) })
end
if not old and redis.call('HLEN', key('schedules')) >= most then
  refuse('FULL this queue has ' .. text(most) .. ' schedules, the most that are allowed')
end
if not old then set_run(name) end
redis.call(
  'HSET',
  key('schedules'),
  name,
  cmsgpack.pack({ 1, ARGV[5], anchor, ARGV[7], ARGV[8], ARGV[9] })
)
local paused = redis.call('HEXISTS', key('paused'), name) == 1
if paused then redis.call('HSET', key('paused'), name, text(tick)) end
redis.call('ZADD', key('ticks'), text(paused and NEVER or tick), name)
redis.call('HDEL', key('stuck'), name)
note_ticks()
return finish({ 1, tick })
