-- session_enter: notes the shards from which a session is about to take, before it does, so that
-- its end finds what it holds.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)
-- ARGV    1 now_ms  2 node.boot  3 uuid  4… places, `queue shard`
-- RETURNS 1; errors NOTFOUND: it has ended; STALE: this boot was declared dead, or is not attached
--         to it for another reason
local uuid, record = ARGV[3], key(ARGV[3])
local node, boot = string.match(CALLER, '^(.*)%.(%d+)$')
if not node then refuse('BADARG the holder ' .. CALLER .. ' is not node.boot') end
local stored = redis.call('HMGET', record, 'at:' .. node, 'ended', 'user')
if not stored[3] or stored[2] then
  refuse('NOTFOUND the session ' .. uuid .. ' has ended; what it held is ready again')
end
if not stored[1] or string.match(stored[1], '^%d+') ~= boot then
  if tonumber(boot) <= (tonumber(redis.call('HGET', key('dead'), node) or 0) or 0) then
    refuse('STALE ' .. CALLER .. ' was declared dead; the node has to register again')
  end
  refuse(
    'STALE ' .. CALLER .. ' is not attached to the session ' .. uuid .. '; it has to join again'
  )
end
redis.call('HDEL', record, '') -- a removal first: a full store lets the script go on
for i = 4, #ARGV do
  redis.call('SADD', key('in:' .. uuid), ARGV[i])
end
return 1
