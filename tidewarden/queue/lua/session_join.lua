-- session_join: begins a session for a connection of this node, or joins it to one; the attach
-- number grows.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix, `{cluster}:session`. Behind it: `<uuid>` (hash user, grace_ms,
--         number, nodes, ended, at:<node> → "boot number"), `in:<uuid>` (set of `queue shard` it
--         may hold tasks in), `at:<node>` (zset of uuids by boot), `graces` (zset of uuids by the
--         end of their grace), `dead` (hash node → its highest boot that was declared dead)
-- ARGV    1 now_ms  2 node.boot  3 uuid  4 user  5 grace ms (-1: as it is)  6 new 0|1
-- RETURNS its attach number; errors NOTFOUND (unknown, ended, or another user's), STALE (this boot
--         was declared dead), FULL
local MANY = 100000 -- sessions whose grace runs; more are kept by nobody in good faith
local uuid, user, grace_ms, record = ARGV[3], ARGV[4], int(5, 'grace', -1, 3600000), key(ARGV[3])
local node, boot = string.match(CALLER, '^(.*)%.(%d+)$')
if not node then refuse('BADARG the holder ' .. CALLER .. ' is not node.boot') end
if #uuid ~= 32 or not string.match(uuid, '^%x+$') then
  refuse('BADARG the session is no uuid: ' .. uuid)
end
if tonumber(boot) <= (tonumber(redis.call('HGET', key('dead'), node) or 0) or 0) then
  refuse('STALE ' .. CALLER .. ' was declared dead; the node has to register again')
end
local stored = redis.call('HMGET', record, 'user', 'ended', 'number', 'nodes')
if ARGV[6] == '1' then
  if stored[1] or grace_ms < 0 then refuse('BADARG a new session has a new uuid and a grace') end
  if redis.call('ZCARD', key('graces')) >= MANY then
    refuse('FULL ' .. text(MANY) .. ' sessions without a connection wait for their grace to end')
  end
elseif stored[1] ~= user or stored[2] then
  refuse('NOTFOUND there is no session ' .. uuid .. ' of yours: it has ended, or never was')
end
redis.call('ZREM', key('graces'), uuid) -- a removal first: a full store lets the script go on
for i, field in ipairs({ 'number', 'nodes' }) do
  if stored[i + 2] then session_number(record, field, stored[i + 2]) end
end
if grace_ms >= 0 then redis.call('HSET', record, 'user', user, 'grace_ms', text(grace_ms)) end
local number = redis.call('HINCRBY', record, 'number', 1)
if redis.call('HSET', record, 'at:' .. node, boot .. ' ' .. text(number)) == 1 then
  redis.call('HINCRBY', record, 'nodes', 1)
end
redis.call('ZADD', key('at:' .. node), boot, uuid)
return number
