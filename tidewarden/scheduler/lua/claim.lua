-- claim: enters in the directory where a schedule of this name lies: each name once in the cluster.
-- DURABILITY system
-- GROWS   no
-- KEYS    1 the directory's shard  2 the view
-- ARGV    3 name
--         4 queue
--         5 the place it had, to be replaced ("": none)
--         6 stamp
--         7 the user who puts it ("": nobody in particular)
--         8 the part of all schedules that one user may have, in thousandths
--         9 schedules of the cluster at most
-- RETURNS {1 it is the caller's | 0 it is another's, the place stored now: `queue stamp`, and who
--         put it}; error FULL: there are as many as may be, or the user has its share
open()
effect = 'grows'
local stored = redis.call('HGET', key('names'), ARGV[3])
if stored and stored ~= ARGV[5] and string.match(stored, '^%S+') ~= ARGV[4] then
  return finish({ 0, stored })
end
local user, mine = ARGV[7], ARGV[4] .. ' ' .. ARGV[6]
if user ~= '' then mine = mine .. ' ' .. user end
if not stored then
  local most, there = int(9, 'schedules', 1, NEVER), redis.call('HLEN', key('names'))
  if there >= most then
    refuse('FULL the cluster has ' .. text(most) .. ' schedules, the most (limits.schedules_max)')
  end
  shares().check(
    user, 'schedules', 'limits.schedules_max', made_by(user), there, most, int(8, 'share', 1, 1000)
  )
end
note_maker(stored, -1)
note_maker(mine, 1)
redis.call('HSET', key('names'), ARGV[3], mine)
return finish({ 1, mine })
