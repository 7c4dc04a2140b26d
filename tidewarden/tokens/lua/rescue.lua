-- rescue: ends the leases of dead nodes on accounts whose refresh tokens may be sent again for a
-- while after a use: not by their time, but when half of that while is over. They go before all
-- others until it is. A request that is still on its way does no harm within it.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 how long a used refresh token works, ms
--         4 how much of that must be left, ms
--         5 accounts at most
-- RETURNS how many
open()
local grace, least, most, REPLAY, ended =
  int(3, 'grace ms', 1, NEVER), int(4, 'left ms', 0, NEVER), int(5, 'accounts', 1, 1000), 30, 0
if S.dead == '' then return finish(0) end
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
for holder in string.gmatch(S.holders, '%S+') do
  local node, boot = string.match(holder, '^(.*)%.(%d+)$')
  local ids = node
      and tonumber(boot) <= dead_boot(node)
      and redis.call('ZRANGE', key('leased:' .. holder), 0, most - 1)
    or {}
  for _, account in ipairs(ids) do
    local t, r, raw = task_get(account), tries_get(account), redis.call('HGET', INTENTS, account)
    if t and r and r.sticky and raw and #raw >= INTENT then
      local started = select(3, struct.unpack('>I4I4I6I6c8I8', raw))
      -- Its next start may have brought the answer meanwhile.
      if now >= started + grace / 2 and started + grace - least > now then
        redis.call(
          'HSET',
          INTENTS,
          account,
          string.sub(raw, 1, 14) .. struct.pack('>I6', now) .. string.sub(raw, 21)
        )
        displace(account)
        t.priority, t.due, t.deadline, r.sticky = REPLAY, now, started + grace, false
        task_put(account, t)
        end_lease(account, t, r, 'loss', 0, 'node ' .. holder .. ' died')
        ended = ended + 1
      end
    end
  end
end
return finish(ended)
