-- rouse: moves the next try of accounts that fail to soon, before it is due: what they failed for
-- is over.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 within how many ms, spread evenly  4 accounts at most
-- RETURNS {accounts whose next try was moved, whether there may be more 0|1}
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local spread, most = int(3, 'ms', 1, NEVER), int(4, 'accounts', 1, 1000)
local waiting, moved =
  redis.call('ZRANGEBYSCORE', FAILING, '(' .. text(now + spread), '+inf', 'LIMIT', 0, most), 0
for i, account in ipairs(waiting) do
  local t, r, at =
    task_get(account), tries_get(account), now + math.floor(spread * (i - 1) / #waiting)
  redis.call('ZADD', FAILING, text(at), account)
  if t and not (r and r.holder ~= '') then -- else somebody is at it
    t.due = at
    put_task(account, t)
    moved = moved + 1
  end
end
return finish({ moved, #waiting == most and 1 or 0 })
