-- beat: notes that a node lives, and reads when each node last said so.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the nodes (hash node → "boot seen_ms"). No other: on a Redis Cluster beats go on while
--         the keys of their slot move one by one
-- ARGV    1 now_ms (unix; "0": the store's TIME)  2 node  3 boot
-- RETURNS {now_ms, {node, boot, age_ms, …}}; error STALE when another process registered under this
--         name, or the boot was buried
local time = redis.call('TIME')
local now = tonumber(ARGV[1])
if now == 0 then now = math.floor((time[1] * 1000000 + time[2]) / 1000) end
local function text(n) return string.format('%.0f', n) end
local node, boot = ARGV[2], tonumber(ARGV[3])
local stored = redis.call('HGET', KEYS[1], node)
local known = stored and tonumber(string.match(stored, '^(%d+) %d+$') or '0') or 0
if boot ~= known then
  return redis.error_reply(
    'STALE '
      .. node
      .. '.'
      .. text(boot)
      .. ' is not registered any more; stored is '
      .. text(known)
  )
end
redis.call('HDEL', KEYS[1], '') -- a removal first: a full store lets the script go on
redis.call('HSET', KEYS[1], node, text(boot) .. ' ' .. text(now))
local all = redis.call('HGETALL', KEYS[1])
local nodes = {}
for i = 1, #all, 2 do
  local known_boot, seen = string.match(all[i + 1], '^(%d+) (%d+)$')
  -- One that nobody can read is passed by: an error would keep all nodes from saying that they
  -- live. Its own registers anew.
  if seen and not string.find(all[i], '[^\33-\126]') then
    nodes[#nodes + 1], nodes[#nodes + 2], nodes[#nodes + 3] =
      all[i], tonumber(known_boot), now - tonumber(seen)
  end
end
return { now, nodes }
