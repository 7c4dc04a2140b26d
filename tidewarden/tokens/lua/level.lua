-- level: moves refreshes of accounts that fall due together ahead, a few at a time, while there is
-- room: else a million that were imported together would fall due together for ever. What falls due
-- within the horizon, within half of it, a quarter … needs some number a second each; the greatest
-- of these is the pace at which nothing heaps up. What does not fall due by itself at that pace
-- until the next call is taken from the front of what is delayed. Accounts in trouble wait for
-- their time. A pace that is hardly above the whole fleet's over a token's life is none of a heap:
-- to keep that up would refresh everything early for ever.
-- DURABILITY none
-- GROWS   no
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- ARGV    3 horizon ms
--         4 ms since the last call: what is done within nine tenths of that again does nothing
--         5 accounts moved at most
--         6 a token's life, ms
-- RETURNS {accounts moved, about how many fall due within the horizon | -1: another node was here
--         just now}
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local horizon, every, most =
  int(3, 'horizon ms', 1, NEVER), int(4, 'ms', 1, NEVER), int(5, 'accounts', 1, 1000)
local life = int(6, 'life ms', 1, NEVER)
local TOLERANCE, FEW = 1.25, 8
if S.later < FEW then return finish({ 0, S.later }) end -- as most of thousands of providers' shards
local ago = now - (tonumber(redis.call('HGET', META, 'levelled')) or 0)
if ago >= 0 and ago < every * 0.9 then return finish({ 0, -1 }) end
redis.call('HSET', META, 'levelled', text(now))

local first, pace, due, ahead_ms, due_within = 0, 0, 0, horizon, delayed_within(horizon)
-- The last window is the nearest: what falls due by itself until the next call.
while ahead_ms >= every do
  local n = due_within(ahead_ms)
  if ahead_ms == horizon then due = n end
  first = n / ahead_ms
  pace = math.max(pace, first)
  ahead_ms = ahead_ms / 2
end
local busy = false
for word in string.gmatch(S.pris, '%S+') do
  busy = busy or redis.call('ZCARD', key('ready:' .. word)) > FEW
end
local share = (pace - first) * every
local wanted = math.min(most, math.floor(share) + (now * 7919 % 1000 < share % 1 * 1000 and 1 or 0))
if busy or due < FEW or pace < math.max(first, S.later / life) * TOLERANCE or wanted < 1 then
  return finish({ 0, math.floor(due) })
end

local ahead, moved = delayed_first(wanted * 2), 0
for i = 1, #ahead, 2 do
  local account = ahead[i]
  if moved == wanted or ahead[i + 1] > now + horizon then break end
  local t = task_get(account)
  if t and ahead[i + 1] > now + every and redis.call('HEXISTS', TROUBLES, account) == 0 then
    moved = moved + 1
    t.due = math.floor(now + every * moved / wanted)
    put_task(account, t)
  end
end
count('accounts levelled', moved)
return finish({ moved, math.floor(due) })
