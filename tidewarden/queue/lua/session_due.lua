-- session_due: which sessions' grace is over; changes nothing.
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms  2 the caller's holder  3 sessions at most
-- RETURNS uuids
return redis.call('ZRANGEBYSCORE', key('graces'), '-inf', text(session_now()), 'LIMIT', 0, int(3, 'sessions', 1, 1000))
