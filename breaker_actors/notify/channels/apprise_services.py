"""The schemas of the addresses of apprise; tests/support/apprise_services.py writes this."""

from __future__ import annotations

WITH_HOST = frozenset(
    """
    apprise apprises bark barks emby embys enigma2 enigma2s evolution evolutions flowtriq flowtriqs form forms
    goalert goalerts gorush gorushs gotify gotifys hassio hassios humhub humhubs infobip jellyfin jellyfins json
    jsons kodi kodis mailgun mastodon mastodons misskey misskeys mmost mmosts ncloud nclouds nctalk nctalks onebot
    onebots opsimate opsimates parsep parseps pinglet pinglets pjet pjets rocket rockets sendpulse session sessions
    signal signals smseagle smseagles smtp2go sogs sparkpost synology synologys toot toots wechat workflow workflows
    xbmc xbmcs xmatters xml xmls
    """.split()
)
"""Their addresses name the receiver's host."""
OTHERS = frozenset(
    """
    46elks acs atalk awswhatsapp azure bale betterstack bluesky brevo bsky bulksms bulkvs burstsms chanify
    clickatell clicksend cliq cm d7sms dapnet dingtalk discord dot eight00com elks exotel fcm feishu firehydrant
    flock fluxer fluxers freemobile gchat github groundmail groupme guilded gupshup httpsms ifttt ilert incidentio
    instagram jira join kakao kakaotalk kaleyra kavenegar klr kook kudosity kumulos lametric lametrics lark lauther
    lfg line mailersend matrix matrixs mobilemessage mobilemsg msg91 msgbird nexmo notica noticas notifiarr notifico
    notificos notifyapp notifyre ntfy ntfys o365 octopush onesignal opsgenie pagerduty pagertree pbul pingram plivo
    postmark pover prowl psafer psafers push pushdeer pushdeers pushed pushme pushplus pushward pushy qq reddit
    resend revolt ringc ryver schan sendgrid serwersms ses seven sfr signalgrid signl4 sinch slack smsc smsmanager
    smsmgr smstunnel sns spike splunk spugpush squadcast stackfield strmlabs telesign telnyx tgram threema trigv
    trigvs tweet twilio twist twitter viber victorops voipms vonage webex wecom wecombot whapi whatsapp wpush
    wxpusher wxteams x youlmk zalo zcliq zohocliq zoom zulip
    """.split()
)
"""The receiver is the service's own, or what stands for the host may be something else."""
LEFT_OUT = frozenset(
    """
    amqp amqps aprs blink1 dbus deltachat deltachats gio glib gnome growl irc ircs kde macosx mailto mailtos mqtt
    mqtts nostr qt rsyslog simplepush smpp smpps spush syslog vapid windows xmpp xmpps
    """.split()
)
"""They send otherwise than with requests, or can't be known to."""
