-- session_bury: detaches a dead boot of a node, with all its connections, from sessions; those that
-- no other node holds begin their grace. Safe to repeat.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the sessions' prefix (see session_join)  2 the cluster's fence
-- ARGV    1 now_ms
--         2 the leader's holder
--         3 epoch
--         4 dead node
--         5 its highest dead boot
--         6 sessions at most
-- RETURNS {sessions left, more 0|1}; error STALE when another leads
local DEAD_MAX = 1000 -- nodes may come under another name each time, as pods do
local epoch, node, boot, most =
  int(3, 'epoch', 1, NEVER),
  ARGV[4],
  int(5, 'boot', 0, 9007199254740991),
  int(6, 'sessions', 1, 1000)
local fence_epoch =
  tonumber(string.match(redis.call('HGET', KEYS[2], 'epoch') or '', '^%d+$') or '0')
if fence_epoch > epoch then refuse('STALE the fence is at epoch ' .. text(fence_epoch)) end
local uuids = redis.call('ZRANGEBYSCORE', key('at:' .. node), '-inf', text(boot), 'LIMIT', 0, most)
redis.call('HDEL', key('dead'), '') -- a removal first: a full store lets the script go on
if boot > (tonumber(redis.call('HGET', key('dead'), node) or 0) or 0) then
  redis.call('HSET', key('dead'), node, text(boot))
end
-- The earliest boot goes; the nodes' register refuses it: see cluster/lua/beat.lua.
if redis.call('HLEN', key('dead')) > DEAD_MAX then
  local all, first = redis.call('HGETALL', key('dead')), 1
  for i = 3, #all, 2 do
    if (tonumber(all[i + 1]) or 0) < (tonumber(all[first + 1]) or 0) then first = i end
  end
  redis.call('HDEL', key('dead'), all[first])
end
for i = 1, #uuids do
  local record = key(uuids[i])
  local stored = redis.call('HMGET', record, 'grace_ms', 'nodes', 'ended')
  if stored[1] and not stored[3] then
    session_detach(
      uuids[i],
      record,
      node,
      session_number(record, 'grace_ms', stored[1]),
      session_number(record, 'nodes', stored[2])
    )
  else
    redis.call('ZREM', key('at:' .. node), uuids[i])
  end
end
return { #uuids, #uuids == most and 1 or 0 }
