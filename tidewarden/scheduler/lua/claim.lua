-- claim: enters in the directory where a schedule of this name lies: each name once in the cluster.
-- DURABILITY system
-- GROWS   no
-- KEYS    1 the directory's shard  2 the view
-- ARGV    3 name  4 queue  5 the place it had, to be replaced ("": none)  6 stamp
-- RETURNS {1 it is the caller's | 0 it is another's, the place stored now: `queue stamp`}
open()
effect = 'grows'
local stored = redis.call('HGET', key('names'), ARGV[3])
if stored and stored ~= ARGV[5] and string.match(stored, '^%S+') ~= ARGV[4] then
  return finish({ 0, stored })
end
local mine = ARGV[4] .. ' ' .. ARGV[6]
redis.call('HSET', key('names'), ARGV[3], mine)
return finish({ 1, mine })
