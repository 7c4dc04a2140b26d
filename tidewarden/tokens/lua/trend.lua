-- trend: how many of a client's refresh tokens are refused, on all nodes together. When far more are than usual, something is the matter
-- with the provider, and no account is declared dead for it. Kept in the first shard of its queue, in a hash `account_trend`: recent (what
-- came in the last ten minutes, but no more than some 500 refreshes, in parts, the oldest first: `since-ms well refused` each), usual (the
-- share of what was before, in millionths; it follows slowly, so that what goes on for long becomes usual), on.
-- KEYS    1 the shard  2 the view
-- ARGV    3 refreshes that went well since this node told last  4 those that were refused
-- RETURNS {nobody is to be declared dead 0|1, share refused of late in thousandths, that has changed just now 0|1}
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local WINDOW_MS, PART_MS, PART, ENOUGH, LEAST = 600000, 10000, 100, 500, 20
local SHARE_MIN, TIMES, USUAL, KEPT = 0.3, 3, 0.02, 1 - 1 / 200
local well, refused = int(3, 'well', 0, COUNT_MAX), int(4, 'refused', 0, COUNT_MAX)
local name = key('account_trend')
local stored = redis.call('HMGET', name, 'recent', 'usual', 'on')
local usual, was_on = stored[2] and tonumber(stored[2]) / 1000000 or USUAL, stored[3] == '1'
local parts, total, bad = {}, well + refused, refused
for since, w, r in string.gmatch(stored[1] or '', '(%d+) (%d+) (%d+)') do
  parts[#parts + 1] = {tonumber(since), tonumber(w), tonumber(r)}
  total, bad = total + w + r, bad + r
end
local last = parts[#parts]
if last and now - last[1] < PART_MS and last[2] + last[3] < PART then last[2], last[3] = last[2] + well, last[3] + refused
elseif well + refused > 0 then parts[#parts + 1] = {now, well, refused} end

local first = 1
while parts[first] do
  local since, w, r = unpack(parts[first])
  local n = w + r
  if since >= now - WINDOW_MS and (first == #parts or total - n < ENOUGH) then break end
  local share = r / n
  usual = share + (usual - share) * KEPT ^ n
  total, bad, first = total - n, bad - r, first + 1
end
local share = total > 0 and bad / total or 0
local on = total >= LEAST and share > math.max(SHARE_MIN, TIMES * usual)
local words = {}
for i = first, #parts do words[#words + 1] = text(parts[i][1]) .. ' ' .. text(parts[i][2]) .. ' ' .. text(parts[i][3]) end
redis.call('HSET', name, 'recent', table.concat(words, ';'), 'usual', text(math.floor(usual * 1000000)), 'on', on and '1' or '0')
local thousandths = math.floor(share * 1000 + 0.5)
if on ~= was_on then post_event(on and 'provider.quarantine_begun' or 'provider.quarantine_over', '', text(thousandths)) end
return finish({on and 1 or 0, thousandths, on ~= was_on and 1 or 0})
