-- session_stop: ends a session though its connections be there: nobody joins it from now on, no
-- node is attached to it, and its leases may be ended. Safe to repeat.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms
--         2 the caller's holder
--         3 uuid
--         4 whose it has to be (none: anybody's)
--         5 ms until the leader goes on with its end, should the caller not
-- RETURNS places `queue shard`; error NOTFOUND: there is none of that user
local uuid, user, record = ARGV[3], ARGV[4], key(ARGV[3])
local rest_ms, stored = int(5, 'rest', 0, 3600000), redis.call('HGETALL', record)
local fields = {}
for i = 1, #stored, 2 do
  fields[stored[i]] = stored[i + 1]
end
if not fields.user or (user ~= '' and fields.user ~= user) then
  refuse('NOTFOUND there is no session ' .. uuid .. ' of yours: it has ended, or never was')
end
for field in pairs(fields) do
  if string.sub(field, 1, 3) == 'at:' then
    redis.call('HDEL', record, field)
    redis.call('ZREM', key(field), uuid)
  end
end
redis.call('HDEL', record, '') -- a removal first: a full store lets the script go on
redis.call('HSET', record, 'ended', '1', 'nodes', '0')
redis.call('ZADD', key('graces'), text(session_now() + rest_ms), uuid)
return redis.call('SMEMBERS', key('in:' .. uuid))
