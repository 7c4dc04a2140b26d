-- claim: writes the epoch that Raft has committed into the store's fence, unless a greater one is
-- there.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the fence (hash epoch, holder)
-- ARGV    1 epoch  2 holder
-- RETURNS 1; error STALE with what is stored
local epoch, holder = tonumber(ARGV[1]), ARGV[2]
local stored, by =
  tonumber(string.match(redis.call('HGET', KEYS[1], 'epoch') or '', '^%d+$') or '0'),
  redis.call('HGET', KEYS[1], 'holder') or ''
if stored > epoch or stored == epoch and by ~= holder then
  return redis.error_reply(
    'STALE the fence is at epoch ' .. string.format('%.0f', stored) .. ' held by ' .. by
  )
end
redis.call('HDEL', KEYS[1], '') -- a removal first: a full store lets the script go on
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'holder', holder)
return 1
