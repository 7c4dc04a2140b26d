-- rouse: moves the next try of accounts that fail to soon, before it is due: what they failed for
-- is over, or it is their turn to show whether it is. Those that the provider said are not to be
-- asked before a time stay.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 within how many ms, spread evenly  4 accounts to look at, at most
--         5 of those that wait, the first so many stay: they were looked at before
--         6 accounts to move, at most
--         7 what they failed by: classes, each between two blanks; "": whatever it was
-- RETURNS {accounts whose next try was moved, accounts that stay and were looked at, whether there
--         may be more 0|1}
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local spread, most, stay, moves =
  int(3, 'ms', 1, NEVER), int(4, 'accounts', 1, 1000), int(5, 'accounts', 0, NEVER), int(
    6,
    'accounts',
    1,
    1000
  )
local waiting =
  redis.call('ZRANGEBYSCORE', FAILING, '(' .. text(now + spread), '+inf', 'LIMIT', stay, most)
local moved, left = 0, 0
local function stays(account, at)
  local raw = redis.call('HGET', TROUBLES, account)
  local read, troubles = pcall(cmsgpack.unpack, raw or '')
  if not read or type(troubles) ~= 'table' then return ARGV[7] ~= '' end
  if (tonumber(troubles[20]) or 0) > at then return true end
  local class = ' ' .. tostring(troubles[7]) .. ' '
  return ARGV[7] ~= '' and not string.find(ARGV[7], class, 1, true)
end
for i, account in ipairs(waiting) do
  local t, r, at =
    task_get(account), tries_get(account), now + math.floor(spread * (i - 1) / #waiting)
  if moved == moves or stays(account, at) then
    left = left + 1
  else
    redis.call('ZADD', FAILING, text(at), account)
    if t and not (r and r.holder ~= '') then -- else somebody is at it
      if r and t.deadline == r.lease_ms then t.deadline = at end -- late: see failed.lua
      t.due = at
      put_task(account, t)
      moved = moved + 1
    end
  end
end
return finish({ moved, left, #waiting == most and 1 or 0 })
