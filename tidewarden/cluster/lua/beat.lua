-- beat: a node says that it lives, or registers anew; and reads when the others last did.
-- KEYS    1 the nodes (hash node → "boot seen_ms"); beside it :at (hash node → host:base_port, of those that say so) and :folder (hash node → its folder's mark)
-- ARGV    1 now_ms (unix; "0": the store's TIME)  2 node  3 boot (0: register anew)  4 least boot to register with  5 where it is reached ("": not told)
--         6 its folder's mark ("": not told; only when registering)  7 ms without a beat after which one of its name and another folder is gone
-- RETURNS {boot, now_ms, {node, boot, age_ms, …}, {node, host:base_port, …}}; error STALE when another process registered under this name, or the boot was buried;
--         EXISTS when one of another folder lives under this name
local time = redis.call('TIME')
local now = tonumber(ARGV[1])
if now == 0 then now = math.floor((time[1] * 1000000 + time[2]) / 1000) end
local function text(n) return string.format('%.0f', n) end
local node, boot, anew = ARGV[2], tonumber(ARGV[3]), ARGV[3] == '0'
local at = KEYS[1] .. ':at'
local stored = redis.call('HGET', KEYS[1], node)
local known = stored and tonumber(string.match(stored, '^(%d+) ')) or 0
local folders, folder = KEYS[1] .. ':folder', ARGV[6] or ''
if anew and stored and folder ~= '' then
  local other = redis.call('HGET', folders, node) or folder
  local age = now - tonumber(string.match(stored, ' (%d+)$'))
  if other ~= folder and math.abs(age) < tonumber(ARGV[7]) then
    local where = redis.call('HGET', at, node)
    return redis.error_reply('EXISTS another node of this name lives' .. (where and ', at ' .. where or ''))
  end
end
if boot == 0 then
  boot = math.max(now, known + 1, tonumber(ARGV[4]))
elseif boot ~= known then
  return redis.error_reply('STALE ' .. node .. '.' .. text(boot) .. ' is not registered any more; stored is ' .. text(known))
end
redis.call('HDEL', KEYS[1], '') -- a removal first: a full store lets the script go on
redis.call('HSET', KEYS[1], node, text(boot) .. ' ' .. text(now))
if anew then redis.call('HDEL', at, node) end
if anew and folder ~= '' then redis.call('HSET', folders, node, folder) end
if anew and ARGV[5] ~= '' then redis.call('HSET', at, node, ARGV[5]) end
local all = redis.call('HGETALL', KEYS[1])
local nodes = {}
for i = 1, #all, 2 do
  local known_boot, seen = string.match(all[i + 1], '^(%d+) (%d+)$')
  nodes[#nodes + 1], nodes[#nodes + 2], nodes[#nodes + 3] = all[i], tonumber(known_boot), now - tonumber(seen)
end
return {boot, now, nodes, redis.call('HGETALL', at)}
