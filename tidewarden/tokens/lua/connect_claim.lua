-- connect_claim: uses up the state that a browser came back with from a provider, once for all
-- nodes, so that no code is sent twice. In the only shard of `_vault` lie
--   connect_claims   zset id by the time until which it is remembered
--   connect_said     hash id → of a state what came of it ("": it is under way, or nobody knows);
--                    of a link how many states it has used up, or `done`
-- DURABILITY strongest
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3 the state's id  4 the link's id  5 ms for which both are remembered
--         6 so many states a link may use up
-- RETURNS {'NEW', '', 0} | {'USED', what came of it, ms since it was used up}
--         | {'DONE', '', 0}: the link has served its purpose
--         | {'SPENT', '', 0}: it has used up too many states
open()
local claims, said = key('connect_claims'), key('connect_said')
local state, link = ARGV[3], ARGV[4]
local keep_ms, most = int(5, 'ms', 1, NEVER), int(6, 'states', 1, 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', claims, 0, text(now), 'LIMIT', 0, 100)) do
  redis.call('ZREM', claims, id)
  redis.call('HDEL', said, id)
end
local known = redis.call('HGET', said, state)
if known then
  local until_ms = tonumber(redis.call('ZSCORE', claims, state)) or now
  return finish({ 'USED', known, math.max(0, now + keep_ms - until_ms) })
end
local used = redis.call('HGET', said, link) or '0'
if used == 'done' then return finish({ 'DONE', '', 0 }) end
if tonumber(used) >= most then return finish({ 'SPENT', '', 0 }) end
redis.call('HSET', said, state, '', link, text(tonumber(used) + 1))
redis.call('ZADD', claims, text(now + keep_ms), state, text(now + keep_ms), link)
return finish({ 'NEW', '', 0 })
