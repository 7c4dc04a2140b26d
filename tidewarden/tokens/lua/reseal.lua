-- reseal: replaces pairs by the same pairs sealed under another data key, only where nothing has
-- changed since they were read. Grant, generation, times and the task stay as they are.
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per pair: account, where (row | spare), the bytes as read, the bytes from now on
-- RETURNS per pair: 1, or 0 when other bytes lie there now
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local PLACES = { row = ACCOUNTS, spare = SPARES }
for i = 3, #ARGV, 4 do
  if not PLACES[ARGV[i + 1]] then
    refuse('BADARG where the pair of ' .. ARGV[i] .. ' lies: ' .. tostring(ARGV[i + 1]))
  end
  checked_row(i + 3)
  if string.sub(ARGV[i + 2], 1, HEAD) ~= string.sub(ARGV[i + 3], 1, HEAD) then
    refuse('BADARG the pair of ' .. ARGV[i] .. ' is another one')
  end
end
local reply = {}
for i = 3, #ARGV, 4 do
  local place = PLACES[ARGV[i + 1]]
  if redis.call('HGET', place, ARGV[i]) == ARGV[i + 2] then
    redis.call('HSET', place, ARGV[i], ARGV[i + 3])
    reply[#reply + 1] = 1
  else
    reply[#reply + 1] = 0
  end
end
return finish(reply)
