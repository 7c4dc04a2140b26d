-- connect_end: notes what came of a state that was used up (see connect_claim.lua); where that is
-- `done`, its link has served its purpose, too. What is remembered no more stays forgotten.
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 the state's id  4 the link's id  5 what came of it
-- RETURNS 1: noted | 0: the state is not remembered
open()
local said, word = key('connect_said'), ARGV[5]
-- A removal first: a full store lets the script go on.
if redis.call('HDEL', said, ARGV[3]) == 0 then return finish(0) end
redis.call('HSET', said, ARGV[3], word)
if word == 'done' and redis.call('HEXISTS', said, ARGV[4]) == 1 then
  redis.call('HSET', said, ARGV[4], word)
end
return finish(1)
