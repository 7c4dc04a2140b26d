-- session_end: ends a session whose grace is over: nobody joins it from now on, and its leases may
-- be ended. Safe to repeat.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms
--         2 the caller's holder
--         3 uuid
--         4 the attach number that was given up (-1: whichever)
-- RETURNS {ms until its grace ends (0: it has ended; -1: somebody is attached, or the number is an
--         older one, or there is none), places `queue shard`}
local uuid, number, record = ARGV[3], int(4, 'attach number', -1, 9007199254740991), key(ARGV[3])
local stored = redis.call('HMGET', record, 'number', 'nodes', 'ended')
if not stored[1] then
  redis.call('ZREM', key('graces'), uuid)
  return { -1, {} }
end
if not stored[3] then
  if number >= 0 and session_number(record, 'number', stored[1]) ~= number then
    return { -1, {} }
  end
  local ends = redis.call('ZSCORE', key('graces'), uuid)
  if not ends or session_number(record, 'nodes', stored[2]) > 0 then
    redis.call('ZREM', key('graces'), uuid)
    return { -1, {} }
  end
  local left = tonumber(ends) - session_now()
  if left > 0 then return { left, {} } end
  redis.call('HDEL', record, '') -- a removal first: a full store lets the script go on
  redis.call('HSET', record, 'ended', '1')
end
return { 0, redis.call('SMEMBERS', key('in:' .. uuid)) }
