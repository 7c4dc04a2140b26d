-- host: grants requests to a host by the rate of all clients there on all nodes together. It is
-- kept in the only shard of `_hosts`, in a hash `host_rates`: host → up to when its rate is used up
-- (us). A second's worth may go at once, or one where that is less.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 ask | back
--         4 host
--         5 requests a second, in thousandths
--         6 requests that are wanted, or that were granted and are not sent
-- RETURNS {granted, ms to wait if that is none}
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local verb, host, each, requests =
  ARGV[3], ARGV[4], 1000000000 / int(5, 'rate', 1, NEVER), int(6, 'requests', 0, 100000)
if verb ~= 'ask' and verb ~= 'back' then
  refuse('BADARG what is asked of a host: ' .. tostring(verb))
end
local name, now_us = key('host_rates'), now * 1000
local spent = tonumber(redis.call('HGET', name, host)) or 0
local granted, wait
granted, wait, spent = rate_grant(spent, now_us, each, verb == 'ask' and requests or 0)
if verb == 'back' then
  spent, wait = math.floor(spent - requests * each), 0
end
redis.call('HSET', name, host, text(spent))
return finish({ granted, wait })
