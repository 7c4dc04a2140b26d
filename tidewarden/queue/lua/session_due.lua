-- session_due: reads which sessions' grace is over; drops entries that are no session's.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms  2 the caller's holder  3 sessions at most  4 how many to pass over (none: 0)
-- RETURNS uuids
local most = int(3, 'sessions', 1, 1000)
local from = ARGV[4] and int(4, 'sessions passed over', 0, NEVER) or 0
local until_ms = text(session_now())
local found =
  redis.call('ZRANGEBYSCORE', key('graces'), '-inf', until_ms, 'LIMIT', text(from), most)
local uuids = {}
for i = 1, #found do
  if #found[i] == 32 and string.match(found[i], '^%x+$') then
    uuids[#uuids + 1] = found[i]
  else
    redis.call('ZREM', key('graces'), found[i])
  end
end
return uuids
