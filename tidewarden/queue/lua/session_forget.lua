-- session_forget: removes a session that has ended, as have its leases; nothing of it stays.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms  2 the caller's holder  3 uuid
-- RETURNS 1, or 0 when it has not ended
local uuid = ARGV[3]
if not redis.call('HGET', key(uuid), 'ended') then return 0 end
redis.call('DEL', key(uuid), key('in:' .. uuid))
redis.call('ZREM', key('graces'), uuid)
return 1
