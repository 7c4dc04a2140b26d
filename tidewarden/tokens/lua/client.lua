-- client: the shared record of one client and its token bucket.
-- Only Python reads the record (tokens/limits/client_record.py). All lies in the first shard of
-- the client's queue, in a hash `account_client`: record (opaque), version (grows with each
-- write), rate (thousandths of a request a second, 0: any number), until (ms; nothing is granted
-- before it), held (1: nor after it, but to one who probes), spent (us; up to when the rate is
-- used up). Times are of the leases' clock, so that nobody waits longer when the store's is
-- stepped.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 ask:   4 version known (0: none), 5 requests wanted, 6 the most of them a second, in
--                  thousandths (0: any)
--           back:  4 version known, 5 requests that were granted and not sent, 6 as above
--           write: 4 the version that was read, 5 record, 6 rate, 7 until ms, 8 held 0|1, then kind
--                  and data of each event
-- RETURNS {granted, ms to wait, version, ms of the leases' clock, how far unix time is ahead of it,
--         the record (empty where its version is known)}
--         write: granted 1 if the version was still that; else 0, and the record
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local name, clock = key('account_client'), lease_clock()
local stored = redis.call('HMGET', name, 'version', 'rate', 'until', 'held', 'spent')
local version, rate, hold_until, held, spent =
  tonumber(stored[1]) or 0,
  tonumber(stored[2]) or 0,
  tonumber(stored[3]) or 0,
  stored[4] == '1',
  tonumber(stored[5]) or 0
local verb, known, granted, wait = ARGV[3], int(4, 'version', 0, NEVER), 0, 0
if verb == 'write' then
  if known == version then
    -- Of former versions.
    if version == 0 then
      redis.call('DEL', key('account_gate'), key('account_trend'), key('account_standing'))
    end
    local per_second, till = int(6, 'rate', 0, NEVER), int(7, 'until', 0, NEVER)
    version, granted, known = version + 1, 1, version + 1
    redis.call(
      'HSET',
      name,
      'version',
      text(version),
      'record',
      ARGV[5],
      'rate',
      text(per_second),
      'until',
      text(till),
      'held',
      ARGV[8]
    )
    for i = 9, #ARGV, 2 do
      post_event(ARGV[i], '', ARGV[i + 1])
    end
  end
else
  local requests, most = int(5, 'requests', 0, 100000), int(6, 'rate', 0, NEVER)
  if rate == 0 or most > 0 and most < rate then rate = most end
  local each = rate > 0 and 1000000000 / rate or 0
  if verb == 'back' then
    if rate > 0 then
      redis.call('HSET', name, 'spent', text(math.floor(math.max(0, spent - requests * each))))
    end
  elseif verb ~= 'ask' then
    refuse('BADARG what is asked of a client: ' .. tostring(verb))
  elseif held or hold_until > clock then
    wait = math.max(0, hold_until - clock)
  elseif rate == 0 or requests == 0 then
    granted = requests
  else
    granted, wait, spent = rate_grant(spent, clock * 1000, each, requests)
    redis.call('HSET', name, 'spent', text(spent))
  end
end
local record = version ~= known and redis.call('HGET', name, 'record') or ''
return finish({ granted, wait, version, clock, S.lag, record })
