-- fire: puts the tasks of ticks that have come and moves each schedule to its next tick, only if
-- the tick is still the stored one: so each tick is put once, whoever else fires. The leader has
-- computed the next tick from the row with this stamp.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 epoch
--         4 the leader's holder
--         5… per schedule: name, stamp, position in the order of ticks ms, new position ms (-1: it
--           is over and removed), stuck 0|1 (1: nothing is put, the true tick is kept for later),
--           number of tasks, then per task: tick ms, id
-- RETURNS {next tick ms | -1, per schedule: tasks put | -1 when it had moved on}; error STALE
--         unless (epoch, holder) is the fence's or newer
open()
effect = 'grows'
local epoch = int(3, 'epoch', 1, NEVER)

local rounds, at = {}, 5
while at <= #ARGV do
  local round = {
    name = ARGV[at],
    stamp = ARGV[at + 1],
    position = int(at + 2, 'position', 0, NEVER),
    following = int(at + 3, 'next tick', -1, NEVER - 1),
    stuck = int(at + 4, 'stuck', 0, 1) == 1,
    tasks = {},
  }
  local tasks = int(at + 5, 'tasks', 0, 1000)
  at = at + 6
  for i = 1, tasks do
    local tick = int(at, 'tick', 0, NEVER - 1)
    if not ARGV[at + 1] then refuse('BADARG the tick ' .. text(tick) .. ' has no id') end
    round.tasks[i] = { tick = tick, id = ARGV[at + 1] }
    at = at + 2
  end
  round.row = row_get(round.name)
  if round.row and tasks > 0 then round.task = cmsgpack.unpack(round.row.task) end
  rounds[#rounds + 1] = round
end
fence(epoch, ARGV[4])

local function put_ticks(round)
  local done = 0
  for i = 1, #round.tasks do
    local id, tick = round.tasks[i].id, round.tasks[i].tick
    if not stored(id) then
      put_scheduled(id, round.row, round.task, tick, true)
      done = done + 1
    end
  end
  if done > 0 then count('put', done) end
  return done
end

local reply = {}
for i = 1, #rounds do
  local round = rounds[i]
  local stored = redis.call('ZSCORE', key('ticks'), round.name)
  if not round.row or round.row.stamp ~= round.stamp or tonumber(stored) ~= round.position then
    reply[i + 1] = -1
  elseif round.stuck then
    redis.call('HSETNX', key('stuck'), round.name, text(round.position))
    redis.call('ZADD', key('ticks'), text(round.following), round.name)
    reply[i + 1] = 0
  else
    reply[i + 1] = put_ticks(round)
    if round.following < 0 then
      row_drop(round.name)
    else
      redis.call('ZADD', key('ticks'), text(round.following), round.name)
      redis.call('HDEL', key('stuck'), round.name)
      local last = round.tasks[#round.tasks]
      if last then set_run(round.name, last.id, last.tick, 'tick') end
    end
  end
end
reply[1] = note_ticks()
return finish(reply)
