-- reap: declares a node's boot dead: its takes are refused from now on, its leases end as losses.
-- Sticky ones end by their time.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 epoch  4 dead node  5 its highest dead boot  6 tasks at most
--         7 "1": the node is gone; else it came back under a later boot
-- RETURNS {ended, more 0|1}; error STALE unless the caller is the fence's leader or newer
open()
-- A node whose boot is forgotten here, for others died since, is refused by the nodes' register:
-- see cluster/lua/beat.lua.
local DEAD_MAX = 128
local epoch, node, boot, most =
  int(3, 'epoch', 1, NEVER), ARGV[4], int(5, 'boot', 0, 9007199254740991), int(6, 'tasks', 1, 1000)
fence(epoch, CALLER)
if dead_boot(node) < boot then
  local rest = {}
  for word in string.gmatch(S.dead, '%S+') do
    if string.match(word, '^(.*)%.%d+$') ~= node then rest[#rest + 1] = word end
  end
  rest[#rest + 1] = node .. '.' .. text(boot)
  set('dead', table.concat(rest, ' ', math.max(1, #rest - DEAD_MAX + 1)))
end
-- Whoever is gone is forgotten, but not what it has sent: see `sequence`. One that lives after all
-- may send that again.
local stream = S['by:' .. node]
if ARGV[7] == '1' and stream then
  set('floor', math.max(S.floor or 0, stream))
  redis.call('HDEL', key('shard'), 'by:' .. node, 'at:' .. node)
  S['by:' .. node], S['at:' .. node] = nil, nil
end
-- Nobody there has to be told anything.
local function survivors(list)
  local rest = {}
  for holder in string.gmatch(list, '%S+') do
    local name, number = string.match(holder, '^(.*)%.(%d+)$')
    if name ~= node or tonumber(number) > boot then rest[#rest + 1] = holder end
  end
  return table.concat(rest, ' ')
end
for _, field in ipairs({ 'waiting', 'roomless' }) do
  local left = survivors(S[field])
  if left ~= S[field] then set(field, left) end
end
local ended, more = 0, 0
for holder in string.gmatch(S.holders, '%S+') do
  local name, number = string.match(holder, '^(.*)%.(%d+)$')
  if name == node and tonumber(number) <= boot then
    ended = ended + end_leases(holder, most - ended, 'loss', 'node ' .. holder .. ' died')
    if ended >= most then more = 1 end
  end
end
-- Nor of the end of any task. An entry of `waits` goes with its last holder, so that nobody looks
-- there for none. Entries in one call; an id that others wait for keeps the words behind these
-- until it ends.
local LOOKED_MAX = 100000
local cursor, seen, cleaned = '0', 0, 0
while S.awaited > 0 and more == 0 do
  local page = redis.call('HSCAN', key('waits'), cursor, 'COUNT', most)
  for i = 1, #page[2], 2 do
    local left = survivors(page[2][i + 1])
    if left ~= page[2][i + 1] then
      redis.call('HDEL', key('waits'), page[2][i])
      if left ~= '' then redis.call('HSET', key('waits'), page[2][i], left) end
      cleaned = cleaned + 1
    end
  end
  cursor, seen = page[1], seen + #page[2] / 2
  if cursor == '0' or seen >= LOOKED_MAX then break end
  if cleaned >= most then more = 1 end
end
if cleaned > 0 then set('awaited', redis.call('HLEN', key('waits'))) end
return finish({ ended, more })
